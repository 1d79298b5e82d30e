"""Compiles the scan of Kineto traces for the wheel, which then is for one platform.

Without a C compiler, or with KAIR_TARGET `none`, the wheel is for all platforms: traces are decoded, with the same
answers. For another KAIR_TARGET (`x86_64-linux-gnu.2.17`) zig compiles; `ziglang` has to be installed for that.
"""

import importlib.util
import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "native"
FOLDER = Path("engine/kair_engine/readers/kineto/compiled")


class CustomBuildHook(BuildHookInterface):
    """Is run before the files of a wheel are gathered."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say in the wheel's name which platform it is for."""
        spec = importlib.util.spec_from_file_location("build", Path(self.root, FOLDER, "build.py"))
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        target = os.environ.get("KAIR_TARGET", NATIVE)
        library = build.LIBRARY
        if version != "editable":
            self._folder = tempfile.TemporaryDirectory()
            library = Path(self._folder.name, library.name)
        failed: str | None = "KAIR_TARGET is none"
        if target != "none":
            failed = build.build(library, target=None if target == NATIVE else target)
        if failed is not None:
            self.app.display_warning(f"{build.WITHOUT}: {failed}")
            return
        if version != "editable":
            build_data["force_include"][str(library)] = str(FOLDER.relative_to("engine") / library.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(target)}"


def platform_of(target: str) -> str:
    """Return the platform in a wheel's name: x86_64-linux-gnu.2.17 is manylinux_2_17_x86_64."""
    if target == NATIVE:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    machine, _, libc = target.split("-")
    return f"manylinux_{libc.removeprefix('gnu.').replace('.', '_')}_{machine}"
