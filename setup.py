"""The compiled extensions and the shared libraries; everything else about the package is in pyproject.toml.

Build in place with ``python setup.py build_ext --inplace``. With NPUSIM_DEBUG_KERNELS=1 in the environment the kernels
check every index and carry debugger symbols. With NPUSIM_SANITIZE=1 the kernels alone are built, under AddressSanitizer
and UndefinedBehaviorSanitizer: ``make sanitize`` puts them into a folder of their own.
"""

from __future__ import annotations

import copy
import os
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path


def require_compiler() -> None:
    """Exit with one sentence if a command that compiles lacks a C compiler or Python's headers."""
    compiling = {"build", "build_clib", "build_ext", "bdist_wheel", "develop", "dist_info", "editable_wheel", "install"}
    if sys.platform == "win32" or not compiling.intersection(sys.argv):
        return
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        raise SystemExit(
            f"npusim is built with a C compiler, and {compiler} is not installed: install gcc or clang "
            "(Debian: apt install gcc libc6-dev; Fedora: dnf install gcc), or name another one in CC"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise SystemExit(
            f"npusim is built with the C headers of Python, and {header} is missing: install them "
            "(Debian: apt install python3-dev; Fedora: dnf install python3-devel)"
        )


require_compiler()

# ruff: noqa: E402 - what is missing is said before anything else is imported
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("NPUSIM_DEBUG_KERNELS", "") not in ("", "0")
SANITIZE = os.environ.get("NPUSIM_SANITIZE", "") not in ("", "0")
# Files that others may truncate are mapped with calls that Windows does not have.
NOT_ON_WINDOWS = {"npusim/_mapped.pyx"}
MODULES = sorted(
    path.as_posix()
    for path in Path("npusim").rglob("*.pyx")
    if sys.platform != "win32" or path.as_posix() not in NOT_ON_WINDOWS
)
HEADERS = sorted(str(path) for path in Path("npusim/kernels").glob("*.h"))

# No -march and no -ffast-math: the build runs on any machine of its family and gives the same bits on all of them.
# Contraction is off because a multiply-add is fused exactly where the source says fma.
UNIX_FLAGS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-unused-function"]
# The first finding ends the process. A number that does not fit its integer type is not part of "undefined".
SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]


def compile_flags() -> list[str]:
    """The C compiler's flags for this platform and build kind."""
    if sys.platform == "win32":
        return ["/O2", "/fp:precise"]
    sanitizers = [*SANITIZERS, "-fno-omit-frame-pointer"] if SANITIZE else []
    return [*UNIX_FLAGS, *sanitizers, *(["-O1", "-g"] if DEBUG or SANITIZE else ["-O3"])]


def extensions() -> list[Extension]:
    """One extension for each ``.pyx`` file of npusim. All of them see the headers in npusim/kernels."""
    return [
        Extension(
            source.removesuffix(".pyx").replace("/", "."),
            [source],
            include_dirs=["npusim/kernels"],
            depends=HEADERS,
            extra_compile_args=compile_flags(),
            extra_link_args=SANITIZERS if SANITIZE else [],
            libraries=[] if sys.platform == "win32" else ["m"],
        )
        for source in MODULES
    ]


# ------------------------------------------------------------------- shared libraries for clients that are not Python

VERSION = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]["version"]
EMBED = ["embed.c", "embed_paths.c", "embed_python.c", "embed_stack.c", "handles.c"]
ABI_HEADERS = sorted(str(path) for path in Path("hal/abi").rglob("*.h"))
# Name without lib and .so, folder, sources in hal/abi, macros. They are built with the kernels, installed in hal.abi,
# and load Python when they are first called: none of them links it.
ONNXIFI = [f"onnxifi_{part}.c" for part in ("core", "calls", "faults", "events", "runs", "backends", "graphs", "abi")]
LIBRARIES: list[tuple[str, str, list[str], list[tuple[str, str]]]] = [
    ("onnxifi-npusim", "lib", [*ONNXIFI, "onnxifi_library.c"], [("NPU_HANDLE_TAG", "0x1A5")]),
    (
        "onnxifi-npusim-v1",
        "lib/v1",
        [*ONNXIFI, "onnxifi_library.c"],
        [("NPU_HANDLE_TAG", "0x2A5"), ("ONNXIFI_NPUSIM_V1", "1")],
    ),
    ("neuralnetworks", "lib", ["neuralnetworks.c", "neuralnetworks_sl.c"], []),
    ("npusim-ort", "lib", ["ort.c"], [("NPU_PACKAGE_VERSION", f'"{VERSION}"')]),
]
# Modules that the libraries import, and what those share, with their sources in hal/abi and macros.
BRIDGES: list[tuple[str, list[str], list[tuple[str, str]]]] = [
    ("hal.onnxifi._descriptors", [], []),
    ("hal.onnxifi._table", [], []),
    (
        "hal.onnxifi._core",
        [*EMBED, *ONNXIFI, "onnxifi_module.c"],
        # Hidden, so that a client's symbols of the same names do not take the place of these.
        [("NPU_HANDLE_TAG", "0x3A5"), ("ONNXIFI_PUBLIC", '__attribute__((visibility("hidden")))')],
    ),
    ("hal.nnapi.capi._bridge", [], []),
    ("hal.ort._bridge", [], []),
]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion"]
C_FLAGS = ["-std=gnu11", "-fvisibility=hidden", *WARNINGS, *(["-O1", "-g"] if DEBUG else ["-O2"])]


class SharedLibrary(Extension):
    """A plain shared library: no init function, no tag of the interpreter in its name."""


class Build(build_ext):
    """Gives a SharedLibrary the name that it asks for, and builds on all processors."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extension(self, ext: Extension) -> None:
        """Build one, with a folder of its own: some share sources, which their macros make different."""
        own = copy.copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(own, ext)

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.rpartition(".")[2] in {f"lib{name}" for name, *_ in LIBRARIES}:  # with or without its package
            return fullname.replace(".", "/") + ".so"
        return super().get_ext_filename(fullname)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return [] if isinstance(ext, SharedLibrary) else super().get_export_symbols(ext)


def python_macros() -> list[tuple[str, str]]:
    """Where the libraries look for Python when the place they are installed in does not tell."""
    values = {
        "NPU_LIBPYTHON_DIR": sysconfig.get_config_var("LIBDIR") or "",
        "NPU_LIBPYTHON_NAME": f"libpython{sysconfig.get_config_var('LDVERSION')}.so.1.0",
        "NPU_BUILD_PYTHON": sys.executable,
    }
    return [(name, f'"{value}"') for name, value in values.items()]


def shared_library(name: str, folder: str, sources: list[str], macros: list[tuple[str, str]]) -> SharedLibrary:
    """One of LIBRARIES. It stays loaded once it is, because its threads do; undefined symbols are errors."""
    return SharedLibrary(
        f"hal.abi.{folder.replace('/', '.')}.lib{name}",
        [f"hal/abi/{source}" for source in [*EMBED, *sources]],
        include_dirs=["hal/abi", "hal/abi/include"],
        depends=ABI_HEADERS,
        define_macros=[*python_macros(), ("NPU_LIBRARY_NAME", f'"lib{name}"'), *macros],
        extra_compile_args=C_FLAGS,
        extra_link_args=[f"-Wl,-soname,lib{name}.so", "-Wl,-z,nodelete", "-Wl,-z,defs"],
        libraries=["dl", "m", "pthread"],
    )


def bridge(name: str, sources: list[str], macros: list[tuple[str, str]]) -> Extension:
    """One of BRIDGES."""
    return Extension(
        name,
        [f"{name.replace('.', '/')}.pyx", *(f"hal/abi/{source}" for source in sources)],
        include_dirs=["hal/abi", "hal/abi/include"],
        depends=ABI_HEADERS,
        define_macros=[*python_macros(), *macros],
        extra_compile_args=["-std=gnu11", "-fvisibility=hidden", *compile_flags()],
        libraries=["dl", "m", "pthread"],
    )


def facades() -> tuple[list[Extension], list[SharedLibrary]]:
    """The bridges and the libraries, where there are shared libraries of this kind."""
    # A sanitizer would have to be in their clients, too.
    if SANITIZE or not sys.platform.startswith("linux"):
        return [], []
    return [bridge(*row) for row in BRIDGES], [shared_library(*row) for row in LIBRARIES]


BRIDGE_MODULES, SHARED_LIBRARIES = facades()

setup(
    cmdclass={"build_ext": Build},
    ext_modules=cythonize(
        [*extensions(), *BRIDGE_MODULES],
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
    + SHARED_LIBRARIES,
)
