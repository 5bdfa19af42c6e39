"""Is this installation sound? Each check is one line: what was looked at, what was found, what to do about it."""

from __future__ import annotations

import enum
import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from npusim.errors import NpusimError


class Verdict(enum.Enum):
    """How much a finding matters: FAILED means that npusim does not work."""

    OK = "ok"
    NOTE = "note"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    subject: str
    verdict: Verdict
    detail: str


def examine(cache_directory: Path) -> list[Finding]:
    """Every finding, in a fixed order; a check that goes wrong is a finding, not an exception."""
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("kernels", _kernels),
        ("configs", _configs),
        ("cache", lambda: _cache(cache_directory)),
        ("hal", _hal),
    )
    found: list[Finding] = []
    for subject, check in checks:
        try:
            found.extend(check())
        except Exception as error:  # noqa: BLE001 a doctor does not die of a disease
            found.append(Finding(subject, Verdict.FAILED, f"{type(error).__name__}: {error}"))
    return found


def _python() -> Iterator[Finding]:
    yield Finding("python", Verdict.OK, f"{platform.python_version()} at {sys.executable}, {platform.platform()}")
    version = importlib.metadata.version("npusim")
    yield Finding("npusim", Verdict.OK, f"{version} at {Path(__file__).parent}")


def _packages() -> Iterator[Finding]:
    for name in ("numpy", "simpy", "click"):
        yield Finding(name, Verdict.OK, importlib.metadata.version(name))
    for name, purpose in (("onnx", "reading .onnx files"), ("ml_dtypes", "bfloat16 arrays in numpy")):
        try:
            yield Finding(name, Verdict.OK, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, Verdict.NOTE, f"not installed, needed for {purpose}: pip install 'npusim[onnx]'")


def _kernels() -> Iterator[Finding]:
    try:
        from npusim import _core
    except ImportError as error:
        yield Finding("kernels", Verdict.FAILED, f"not built ({error}): pip install . needs a C compiler")
        return
    yield Finding("kernels", Verdict.OK, f"{Path(str(_core.__file__)).name}, SIMD {_core.simd()}")


def _configs() -> Iterator[Finding]:
    from npusim.hw.config import list_configs, load_config
    from npusim.hw.files import config_folder

    names = list_configs()
    for name in names:
        try:
            load_config(name)
        except NpusimError as error:
            yield Finding("configs", Verdict.FAILED, f"{name}: {error}")
    verdict = Verdict.OK if names else Verdict.FAILED
    yield Finding("configs", verdict, f"{', '.join(names) or 'none'} in {config_folder()}")


def _cache(directory: Path) -> Iterator[Finding]:
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"npusim")
            file.flush()
    except OSError as error:
        advice = "programs are compiled anew in every run; --cache-dir or NPUSIM_CACHE_DIR choose another place"
        yield Finding("cache", Verdict.NOTE, f"{directory}: cannot be written ({error.strerror}); {advice}")
        return
    yield Finding("cache", Verdict.OK, f"{directory} can be written")


def _hal() -> Iterator[Finding]:
    """npusim installs a top-level package called hal; another distribution that does so would hide or mix with it."""
    owners = set(importlib.metadata.packages_distributions().get("hal", ())) - {"npusim"}
    spec = importlib.util.find_spec("hal")
    place = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    if owners:
        others = ", ".join(sorted(owners))
        yield Finding("hal", Verdict.NOTE, f"{others} also installs a package hal; import hal gives {place}")
    elif spec is None:
        yield Finding("hal", Verdict.NOTE, "not installed: the facades in the package hal cannot be imported")
    elif Path(place).parent != Path(__file__).resolve().parents[1]:
        yield Finding("hal", Verdict.NOTE, f"import hal gives {place}, which is not npusim's")
    else:
        yield Finding("hal", Verdict.OK, place)
