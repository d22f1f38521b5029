"""The build of a wheel compiles the kernels in C where it can: see tensorstore_ds/native/compile.py.

TSDS_NATIVE=1 makes it an error if that fails; 0 leaves them out. An editable install compiles them where they lie.
Other builds write nothing into the tree that they are of.
"""

from __future__ import annotations

import platform
import runpy
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("tensorstore_ds", "native")


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel, or a note that says why there is none."""

    _made: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it, and say in the wheel's name for which platform that is."""
        if self.target_name != "wheel":
            return
        source = Path(self.root, NATIVE)
        names = runpy.run_path(str(source / "compile.py"))
        is_editable = version == "editable"
        folder = source
        if not is_editable:
            self._made = tempfile.TemporaryDirectory(prefix="tsds-build-")
            folder = Path(self._made.name)
        try:
            made: Path = names["compile_or_note"](folder)
        except names["CompileError"] as error:
            sys.exit(f"tensorstore-ds: the kernels in C were not compiled: {error}")
        if made.name == names["NOTE"]:
            reason = made.read_text(encoding="utf-8").strip()
            self.app.display_warning(f"tensorstore-ds without its kernels in C, so some work is slower: {reason}")
        elif not is_editable:
            build_data["pure_python"] = False
            version = "cp{}{}".format(*sys.version_info)
            abi = f"{version}-{version}t" if names["IS_FREE_THREADED"] else "cp311-abi3"
            build_data["tag"] = f"{abi}-{_platform()}"
        if not is_editable:
            build_data["force_include"][str(made)] = (NATIVE / made.name).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        if self._made is not None:
            self._made.cleanup()


def _platform() -> str:
    """The platform in the name of a wheel: of this processor alone, also where Python itself is for two."""
    name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return name.replace("universal2", platform.machine()) if sys.platform == "darwin" else name
