"""``python -m tensorstore_ds.native`` compiles the kernels in C in place."""

import sys

from tensorstore_ds.native.compile import main

main(sys.argv[1:])
