"""Files from users, changed where it matters: the common part of all kinds.

A kind decodes a valid file, changes its content, and writes it with valid lengths and checksums; some cases are changed
byte by byte instead. Each must end in a correct result or in one error of npusim, within limits.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any

from npusim.errors import NpusimError
from tests.support.fuzz.watched import MOST_BYTES, PATIENCE_S

NUMBERS = (-1, 0, 1, 2, 3, 7, 255, 256, 4095, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64, 2**100, 2**300)
TEXTS = (
    "",
    "x",
    "0",
    "-1",
    "nan",
    "1e400",
    "tiny",
    "core0.dma0",
    "../x",
    "\0",
    "\x1b[31m",
    "é" * 50,
    "a" * 3000,
    "=1+1",
)
ODD = (None, True, False, 0.5, -0.0, 1e-320, 1e308, [], {}, [[]], {"": {}}, [0] * 50)


class Kind(ABC):
    """A kind of file. ``tally`` counts the outcomes."""

    plain = 0.2
    """Fraction of the cases with changed bytes."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)

    @abstractmethod
    def good(self, rng: random.Random) -> bytes:
        """Return a valid file."""

    @abstractmethod
    def changed(self, rng: random.Random) -> bytes:
        """Return a well-formed file with changed content."""

    @abstractmethod
    def use(self, path: Path, rng: random.Random) -> str:
        """Read and use the file. Returns the outcome. Raises NpusimError."""

    def case(self, rng: random.Random) -> list[str]:
        data = mangled(self.good(rng), rng) if rng.random() < self.plain else self.changed(rng)
        path = self.folder / "given"
        path.write_bytes(data)
        # Measure resident memory: a device reserves address space for all of its DRAM.
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        problems = []
        try:
            end = self.use(path, rng)
        except NpusimError as error:
            end = type(error).__name__
            if not str(error).strip() or len(str(error)) > 20_000:
                problems.append(f"an error of {len(str(error))} characters")
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            end = "not an error of npusim"
            problems.append(repr(error)[:500])
        took = time.process_time() - began
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        problems += [f"took {took:.1f} s"] if took > PATIENCE_S else []
        problems += [f"took {more >> 20} MiB"] if more > MOST_BYTES else []
        self.tally[end] += 1
        return [problem.replace("\n", " ") for problem in problems]


def mangled(data: bytes, rng: random.Random) -> bytes:
    """Return data with flipped bits, or with bytes removed, duplicated or inserted."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, kind = rng.randrange(len(out) + 1), rng.randrange(6)
        if kind < 2 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at:]
        elif kind == 3:
            del out[at : at + rng.choice((1, 2, 8, 64))]
        elif kind == 4:
            out[at:at] = rng.choice((b"\0", b"\xff", bytes(64), rng.randbytes(9), bytes(out[:at])[-4096:]))
        else:
            out[at : at + 8] = rng.randbytes(8)
    return bytes(out)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to each value in a document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def other(value: Any, rng: random.Random) -> Any:
    """Return another value, often close to the old one."""
    kind = rng.random()
    if type(value) is int and kind < 0.5:
        return value + rng.choice((-2, -1, 1, 2, 8, 4096, -4096, value))
    if type(value) is bool and kind < 0.6:
        return not value
    if isinstance(value, str) and kind < 0.4:
        at = rng.randrange(len(value) + 1)
        return value[:at] + rng.choice(("", *TEXTS)) + value[at + rng.randrange(3) :]
    if isinstance(value, list) and value and kind < 0.6:
        items = list(value)
        at = rng.randrange(len(items))
        change = rng.randrange(4)
        if change == 0:
            del items[at]
        elif change == 1:
            items.insert(at, copy.deepcopy(items[rng.randrange(len(items))]))
        elif change == 2:
            rng.shuffle(items)
        else:
            items = items[:at]
        return items
    return copy.deepcopy(rng.choice((*NUMBERS, *TEXTS, *ODD)))


def altered(document: Any, rng: random.Random, where: list[tuple[Any, ...]] | None = None) -> Any:
    """Return a copy of a document with some values changed, removed, renamed or exchanged. ``where`` restricts the
    places."""
    made = json.loads(json.dumps(document))
    where = where or places(made)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *above, last = rng.choice(where)
        try:
            inside = made
            for step in above:
                inside = inside[step]
            kind = rng.random()
            if kind < 0.08:
                del inside[last]
            elif kind < 0.16:
                *source, name = rng.choice(where)
                from_ = made
                for step in source:
                    from_ = from_[step]
                inside[last] = copy.deepcopy(from_[name])
            elif kind < 0.2 and isinstance(inside, dict):
                inside[rng.choice((*TEXTS[:8], f"{last}x"))] = inside.pop(last)
            else:
                inside[last] = other(inside[last], rng)
        except (KeyError, IndexError, TypeError):
            continue  # it is below a value that was just changed
    return made


def toml(tables: dict[str, Any]) -> str:
    """Return tables as TOML with inline inner tables. Values that TOML cannot express are left out."""
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in tables.items() if value is not None)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = (f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items() if item is not None)
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value if item is not None) + "]"
    return json.dumps(value)
