"""Diagnosis of an installation, one line per check: what was checked, the result, and a remedy."""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from npusim.errors import NpusimError, UsageError


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
    yield from _extras()


def _extras() -> Iterator[Diagnosis]:
    """The optional packages of users, by the extra that installs them."""
    extras: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("npusim") or ():
        found = re.fullmatch(r"""([\w.-]+).*;\s*extra == ["'](\w+)["']""", requirement)
        if found and found[2] not in ("test", "dev"):
            extras.setdefault(found[2], []).append(found[1])
    for extra, names in extras.items():
        versions = {}
        for name in names:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name)
        missing = [name for name in names if name not in versions]
        if missing:
            detail = f"not installed: {', '.join(missing)}; pip install 'npusim[{extra}]'"
            yield Diagnosis(extra, Severity.NOTE, detail)
        else:
            yield Diagnosis(extra, Severity.OK, ", ".join(f"{name} {version}" for name, version in versions.items()))


def _kernels() -> Iterator[Diagnosis]:
    try:
        from npusim import _core
    except ImportError as error:
        yield Diagnosis("kernels", Severity.FAILED, f"not built ({error}): pip install . needs a C compiler")
        return
    except UsageError as error:
        yield Diagnosis("kernels", Severity.FAILED, str(error))
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
