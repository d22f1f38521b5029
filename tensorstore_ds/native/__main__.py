"""``python -m tensorstore_ds.native`` compiles the kernels in C where they lie."""

import sys

from tensorstore_ds.native.compile import main

main(sys.argv[1:])
