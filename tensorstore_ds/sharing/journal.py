"""The parts of each file that a copy has received, in a text file that grows by a line for each part.

A line is written after its part, so that a killed process has every part in the journal. After a power loss a part may
still be missing, which the SHA-256 of each file shows. A file that is noted as whole was synced before.

::

    0 1048576 train/00000/image/c/0/0/0/0
    whole train/00000/label/zarr.json
    gone train/00000/image/c/0/0/0/0
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_LINE = re.compile(r"(?:(?P<start>\d{1,16}) (?P<stop>\d{1,16})|(?P<word>whole|gone)) (?P<name>[a-z0-9_./-]+)")


class Journal:
    """The journal of one copy, in a file that is open for reading and appending; it ignores names outside `files`."""

    def __init__(self, descriptor: int, files: Mapping[str, int]) -> None:
        self._descriptor = descriptor
        self._whole: set[str] = set()
        self._spans: dict[str, list[tuple[int, int]]] = {}
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
        for line in data.decode("ascii", "replace").split("\n")[:-1]:
            found = _LINE.fullmatch(line)
            if found is not None and found["name"] in files:
                self._note(found, files[found["name"]])
        if data and not data.endswith(b"\n"):  # cut off by a crash
            os.write(descriptor, b"\n")

    def _note(self, line: re.Match[str], size: int) -> None:
        name = line["name"]
        if line["word"] == "whole":
            self._whole.add(name)
        elif line["word"] == "gone":
            self._whole.discard(name)
            self._spans.pop(name, None)
        elif int(line["start"]) < int(line["stop"]) <= size:
            self._spans.setdefault(name, []).append((int(line["start"]), int(line["stop"])))

    def is_whole(self, name: str) -> bool:
        """Whether an earlier run has checked and synced a file."""
        return name in self._whole

    def missing(self, name: str, size: int) -> list[tuple[int, int]]:
        """The parts ``[start, stop)`` of a file that no earlier run received, in order."""
        gaps, at = [], 0
        for start, stop in sorted(self._spans.get(name, ())):
            if start > at:
                gaps.append((at, start))
            at = max(at, stop)
        return [*gaps, (at, size)] if at < size else gaps

    def add(self, name: str, start: int, stop: int) -> None:
        """Record that these bytes are in place."""
        self._write(f"{start} {stop} {name}\n")

    def add_whole(self, name: str) -> None:
        """Record that a file is checked and synced."""
        self._write(f"whole {name}\n")

    def forget(self, name: str) -> None:
        """Record that no byte of a file is valid."""
        self._write(f"gone {name}\n")

    def _write(self, line: str) -> None:
        os.write(self._descriptor, line.encode())  # in one piece, so that lines of several threads do not mix

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
