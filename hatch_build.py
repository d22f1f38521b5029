"""The build of a wheel compiles the kernels in C where it can: see tensorstore_ds/native/compile.py.

TSDS_NATIVE=1 makes it an error if that fails; 0 leaves it out. An editable install compiles them where they lie.
"""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it, and say in the wheel's name for which platform that is."""
        wanted = os.environ.get("TSDS_NATIVE", "")
        if self.target_name != "wheel" or wanted == "0":
            return
        names = runpy.run_path(str(Path(self.root, "tensorstore_ds", "native", "compile.py")))
        try:
            made = names["compile_module"]()
        except names["CompileError"] as error:
            if wanted == "1":
                raise
            self.app.display_warning(f"tensorstore-ds without its compiled part, which is slower: {error}")
            return
        build_data["artifacts"].append(str(made.relative_to(self.root)))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"
