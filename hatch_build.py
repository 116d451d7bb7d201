"""Build the optional kernel with the wheel; without a compiler the wheel is pure Python and slower, nothing else."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags  # hatchling depends on it

FLAGS = ["-O3", "-std=gnu11", "-fno-math-errno", "-shared", "-fPIC"]


class KernelHook(BuildHookInterface):  # type: ignore[type-arg,misc]  # hatchling is there only while building
    """Compiles `engine/_kernels.c` beside its module in the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say in the wheel's tag for which platform; the library is of no Python version."""
        compiler = shutil.which(os.environ.get("CC", "cc"))
        has_kernel = os.name == "posix" and platform.machine() in ("x86_64", "amd64")  # elsewhere it would be empty
        if compiler is None or not has_kernel or "ELMO_NO_KERNEL" in os.environ:
            return
        self._folder = tempfile.TemporaryDirectory()
        target = Path(self._folder.name) / "_kernels.so"
        source = Path(self.root) / "src" / "elmo" / "engine" / "_kernels.c"
        done = subprocess.run([compiler, *FLAGS, str(source), "-o", str(target)], capture_output=True, text=True)
        if done.returncode != 0:
            self.app.display_warning(f"the optional kernel was not built:\n{done.stderr}")
            return
        build_data["force_include"][str(target)] = "elmo/engine/_kernels.so"
        build_data["pure_python"] = False
        here = (tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
        build_data["tag"] = f"py3-none-{next(here)}"
