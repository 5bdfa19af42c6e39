"""Golden timelines: rejected, or compared; only equal timelines compare equal."""

from __future__ import annotations

import random
from pathlib import Path

from npusim.demo import network
from npusim.hw.config import load_config
from npusim.runtime import Session
from npusim.testing.changes import MOST_LINES, changes
from npusim.testing.record import dump, read, record
from tests.support.fuzz.given_files import NUMBERS, TEXTS, Kind


class Goldens(Kind):
    """The timeline of a small network."""

    plain = 0.4

    def __init__(self) -> None:
        super().__init__()
        with Session(load_config("tiny"), cache_dir=False) as session:
            self._record = record(session.run(network(), timing_only=True))
        self._text = dump(self._record)

    def good(self, rng: random.Random) -> bytes:
        return self._text.encode()

    def changed(self, rng: random.Random) -> bytes:
        lines = self._text.splitlines()
        for _ in range(rng.choice((1, 1, 2, 5))):
            at, kind = rng.randrange(len(lines)), rng.randrange(6)
            words = lines[at].split(" ")
            place = rng.randrange(len(words))
            if kind == 0:
                lines.insert(at, lines[rng.randrange(len(lines))])
            elif kind == 1 and len(lines) > 1:
                del lines[at]
            elif kind == 2:
                lines[at], lines[0] = lines[0], lines[at]
            elif kind == 3 and "=" in words[place]:
                words[place] = f"{words[place].partition('=')[0]}={rng.choice((*NUMBERS, *TEXTS, '9' * 5000))}"
            else:
                words[place] = str(rng.choice((*NUMBERS, *TEXTS, "unit", "layer", "|", "waits", *words)))
            if kind > 2:
                lines[at] = " ".join(words)
        return ("\n".join(lines) + "\n" * (rng.random() < 0.95)).encode("utf-8", "replace")

    def use(self, path: Path, rng: random.Random) -> str:
        before = read(path)
        found = changes(before, self._record, path.name)
        if len(found) > MOST_LINES or bool(found) != (before != self._record):
            raise AssertionError(f"{len(found)} lines of changes")
        if found and path.read_bytes() == self._text.encode():
            raise AssertionError("the same file differs")
        return "differs" if found else "the same"


def make() -> Goldens:
    return Goldens()
