"""Compiles the CPU kernels into a standard wheel, once for each level of x86-64.

An editable install gets none: it compiles at first use, for the processor that it finds. Neither
does a wheel for another processor or from a machine without a compiler.
"""

import importlib.util
import platform
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Named in pyproject.toml."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the libraries to a wheel, which then is for this platform only."""
        native = _native(Path(self.root))
        suits = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
        if version != "standard" or not suits:
            return
        if native.compiler() is None:
            self.app.display_warning("no C++ compiler found: this wheel has no CPU kernels")
            return
        self._folder = tempfile.TemporaryDirectory(prefix="hyla-")
        for path in native.build_variants(Path(self._folder.name)):
            build_data["force_include"][str(path)] = f"hyla/_native/{path.name}"
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was compiled."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _native(root: Path) -> Any:
    """The module that compiles, without the package, which needs PyTorch."""
    spec = importlib.util.spec_from_file_location("native", root / "hyla" / "native.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
