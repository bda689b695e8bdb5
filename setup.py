"""The compiled CPU kernels: one library per instruction set, loaded by `vtk.kernels.cpu_library`.

Everything else is in pyproject.toml. Without a C++ compiler the package installs all the same, and language models run
in plain torch where that is installed.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMMON = ["-O3", "-std=c++17", "-g0", "-pthread", "-ffp-contract=off", "-fvisibility=hidden"]
X86 = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"],
}
FLAGS = {"portable": [], **(X86 if platform.machine() in ("x86_64", "AMD64") else {})}


class BuildLibraries(build_ext):
    """Plain shared libraries with fixed names, not Python modules; objects apart, since all share their sources."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        shared = self.build_temp
        self.build_temp = str(Path(shared) / ext.name)
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = shared


setup(
    cmdclass={"build_ext": BuildLibraries},
    ext_modules=[
        Extension(
            f"vtk.kernels._cpu_{isa}",
            sources=sorted(str(path) for folder in Path("kernels").iterdir() for path in folder.glob("*.cpp")),
            depends=sorted(str(path) for path in Path("kernels/csrc").glob("*.h")),
            include_dirs=["kernels/csrc"],
            extra_compile_args=[*COMMON, *flags],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
        for isa, flags in FLAGS.items()
    ],
)
