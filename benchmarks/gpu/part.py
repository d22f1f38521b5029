"""``python -m benchmarks.gpu.part NAME SCRATCH FILE [--small] [--photographs=DIR]``: one part, in this process.

FILE gets a line of JSON for each row and figure as soon as it is there, so that a part that is ended has those before.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.data import NotHereError, Settings
from benchmarks.gpu.run import PARTS
from benchmarks.measure import Figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Write what a part yields."""
    name, scratch, file, *more = sys.argv[1:] if arguments is None else arguments
    module, _, function = PARTS[name].function.partition(".")
    measure = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)
    folders = [Path(each.partition("=")[2]) for each in more if each.startswith("--photographs=")]
    settings = Settings(Path(scratch), "--small" in more, next(iter(folders), None))
    with Path(file).open("w", buffering=1) as lines:
        try:
            for found in measure(settings):
                line = {"figure": asdict(found)} if isinstance(found, Figure) else {"row": found}
                print(json.dumps(line), file=lines)
        except NotHereError as error:
            print(json.dumps({"not here": str(error)}), file=lines)


if __name__ == "__main__":
    main()
