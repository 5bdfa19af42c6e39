"""Diagnosis of an installation, one line per check: what was checked, the result, and a remedy."""

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


class Severity(enum.Enum):
    """Severity of a finding. FAILED: npusim does not work."""

    OK = "ok"
    NOTE = "note"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the report."""

    subject: str
    verdict: Severity
    detail: str


def examine(cache_directory: Path) -> list[Diagnosis]:
    """All findings in a fixed order; a check that raises an error is a finding."""
    checks: tuple[tuple[str, Callable[[], Iterator[Diagnosis]]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("kernels", _kernels),
        ("configs", _configs),
        ("cache", lambda: _cache(cache_directory)),
        ("hal", _hal),
    )
    found: list[Diagnosis] = []
    for subject, check in checks:
        try:
            found.extend(check())
        except Exception as error:  # noqa: BLE001 a doctor does not die of a disease
            found.append(Diagnosis(subject, Severity.FAILED, f"{type(error).__name__}: {error}"))
    return found


def _python() -> Iterator[Diagnosis]:
    yield Diagnosis("python", Severity.OK, f"{platform.python_version()} at {sys.executable}, {platform.platform()}")
    version = importlib.metadata.version("npusim")
    yield Diagnosis("npusim", Severity.OK, f"{version} at {Path(__file__).parent}")


def _packages() -> Iterator[Diagnosis]:
    for name in ("numpy", "simpy", "click"):
        yield Diagnosis(name, Severity.OK, importlib.metadata.version(name))
    for name, purpose in (("onnx", "reading .onnx files"), ("ml_dtypes", "bfloat16 arrays in numpy")):
        try:
            yield Diagnosis(name, Severity.OK, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Diagnosis(name, Severity.NOTE, f"not installed, needed for {purpose}: pip install 'npusim[onnx]'")


def _kernels() -> Iterator[Diagnosis]:
    try:
        from npusim import _core
    except ImportError as error:
        yield Diagnosis("kernels", Severity.FAILED, f"not built ({error}): pip install . needs a C compiler")
        return
    yield Diagnosis("kernels", Severity.OK, f"{Path(str(_core.__file__)).name}, SIMD {_core.simd()}")


def _configs() -> Iterator[Diagnosis]:
    from npusim.hw.config import list_configs, load_config
    from npusim.hw.files import config_folder

    names = list_configs()
    for name in names:
        try:
            load_config(name)
        except NpusimError as error:
            yield Diagnosis("configs", Severity.FAILED, f"{name}: {error}")
    verdict = Severity.OK if names else Severity.FAILED
    yield Diagnosis("configs", verdict, f"{', '.join(names) or 'none'} in {config_folder()}")


def _cache(directory: Path) -> Iterator[Diagnosis]:
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"npusim")
            file.flush()
    except OSError as error:
        advice = "programs are compiled anew in every run; --cache-dir or NPUSIM_CACHE_DIR choose another place"
        yield Diagnosis("cache", Severity.NOTE, f"{directory}: cannot be written ({error.strerror}); {advice}")
        return
    yield Diagnosis("cache", Severity.OK, f"{directory} can be written")


def _hal() -> Iterator[Diagnosis]:
    """npusim installs a top-level package called hal; another distribution with the same package would conflict."""
    owners = set(importlib.metadata.packages_distributions().get("hal", ())) - {"npusim"}
    spec = importlib.util.find_spec("hal")
    place = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    if owners:
        others = ", ".join(sorted(owners))
        yield Diagnosis("hal", Severity.NOTE, f"{others} also installs a package hal; import hal gives {place}")
    elif spec is None:
        yield Diagnosis("hal", Severity.NOTE, "not installed: the facades in the package hal cannot be imported")
    elif Path(place).parent != Path(__file__).resolve().parents[1]:
        yield Diagnosis("hal", Severity.NOTE, f"import hal gives {place}, which is not npusim's")
    else:
        yield Diagnosis("hal", Severity.OK, place)
