"""The identity of this installation of npusim, which two processes compare before they share a study."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import npusim
from npusim.runtime.provenance import versions


@functools.cache
def build() -> dict[str, str]:
    """The versions of everything that can change a result, and ``source``: the beginning of the SHA-256 of npusim's
    files."""
    folder = Path(npusim.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")) + sorted(folder.rglob("*.so")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return {**versions(), "source": digest.hexdigest()[:16]}
