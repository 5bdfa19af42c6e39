"""The operands of every operation, as text; ``python -m tests.unit.nnapi.operations.definitions`` writes it again.

Signatures as their number and a checksum over all of them, optional inputs, and rules.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from hal.nnapi.operations import REGISTRY, Definition
from hal.nnapi.operations.signature import operation_name

PATH = Path(__file__).with_name("definitions.txt")


def _signatures(definition: Definition) -> str:
    if not isinstance(definition.signatures, frozenset):
        return getattr(definition.signatures, "__name__", type(definition.signatures).__name__)
    texts = sorted(repr(form) for form in definition.signatures)
    return f"{len(texts)} {zlib.crc32(''.join(texts).encode()):08x}"


def record() -> Iterator[str]:
    """Yield one line for each operation, then one line for each rule with its operations."""
    rules: dict[str, list[str]] = {}
    for kind in sorted(REGISTRY):
        definition, name = REGISTRY[kind], operation_name(kind)
        for rule in definition.rules:
            rules.setdefault(" ".join((rule.__doc__ or rule.__name__).split()), []).append(name)
        for version, rule in definition.later:
            rules.setdefault(f"since {version}: {rule.__doc__}", []).append(name)
        optional = f"; optional {', '.join(map(str, sorted(definition.optional)))}" if definition.optional else ""
        yield f"{name}: {_signatures(definition)}{optional}"
    for rule, names in sorted(rules.items()):
        yield f"{rule}: {' '.join(names)}"


if __name__ == "__main__":
    PATH.write_text("\n".join([*record(), ""]), encoding="utf-8")
