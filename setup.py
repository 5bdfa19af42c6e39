"""The compiled extensions; everything else about the package is in pyproject.toml.

Build in place with ``python setup.py build_ext --inplace``. With NPUSIM_DEBUG_KERNELS=1 in the environment the kernels
check every index and carry debugger symbols.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("NPUSIM_DEBUG_KERNELS", "") not in ("", "0")
MODULES = (
    "_core",
    "_dram",
    "_leap",
    "_simd",
    "_move",
    "_lanes",
    "_matrix",
    "_drain",
    "_index",
    "_reduce",
    "_rows",
    "_window",
)
HEADERS = sorted(str(path) for path in Path("npusim/kernels").glob("*.h"))

# No -march and no -ffast-math: the build runs on any machine of its family and gives the same bits on all of them.
# Contraction is off because a multiply-add is fused exactly where the source says fma.
UNIX_FLAGS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-unused-function"]


def compile_flags() -> list[str]:
    """The C compiler's flags for this platform and build kind."""
    if sys.platform == "win32":
        return ["/O2", "/fp:precise"]
    return [*UNIX_FLAGS, *(["-O1", "-g"] if DEBUG else ["-O3"])]


def extensions() -> list[Extension]:
    """One extension per module; all of them see the headers in npusim/kernels."""
    return [
        Extension(
            f"npusim.{name}",
            [f"npusim/{name}.pyx"],
            include_dirs=["npusim/kernels"],
            depends=HEADERS,
            extra_compile_args=compile_flags(),
            libraries=[] if sys.platform == "win32" else ["m"],
        )
        for name in MODULES
    ]


setup(
    ext_modules=cythonize(
        extensions(),
        # Apart, because a change of directives alone does not make Cython write a file again.
        build_dir="build/cython-debug" if DEBUG else "build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": DEBUG,
            "embedsignature": True,
        },
    )
)
