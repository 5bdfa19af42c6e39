"""Edited run records in JSON: rejected, or compared with others; a rerun detects the edit."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from npusim.cli.models import load_run
from npusim.demo import as_onnx
from npusim.explore.compare import compare
from npusim.explore.compare_text import text, totals
from npusim.explore.rerun import _differences, rerun
from npusim.hw.config import load_config
from npusim.report.html import compare_page
from npusim.runtime import Session
from tests.support.fuzz.given_files import Kind, altered, places

RERUN = 0.02
"""Fraction of the cases that are rerun, which is slow."""


class Runs(Kind):
    """A run of a small network."""

    plain = 0.1

    def __init__(self) -> None:
        super().__init__()
        self._model = self.folder / "m.onnx"
        self._model.write_bytes(as_onnx())
        with Session(load_config("tiny"), cache_dir=False) as session:
            self._record: dict[str, Any] = json.loads(
                json.dumps(session.run(session.compile(self._model), timing_only=True).to_json_dict())
            )
        self._where = places(self._record)
        # Weight the other places: most of the record is operator figures, which are all alike.
        few = [place for place in self._where if place[0] in ("provenance", "units", "timeline_digest", "energy")]
        self._where = self._where + few * (len(self._where) // len(few))

    def good(self, rng: random.Random) -> bytes:
        return json.dumps(self._record).encode()

    def changed(self, rng: random.Random) -> bytes:
        return json.dumps(altered(self._record, rng, self._where)).encode()

    def use(self, path: Path, rng: random.Random) -> str:
        found = load_run(path)
        if rng.random() < RERUN:
            again = rerun(found, str(path))
            # The description only labels the device and is not compared by a rerun.
            changes = [each for each in _differences(found, self._record, False) if ".description " not in each]
            if again.same and changes:
                raise AssertionError("an edited record is the same")
            return "the same" if again.same else "differs"
        sides = (found, self._record) if rng.random() < 0.5 else (self._record, found)
        compared = compare(*sides)
        text(compared, 10)
        json.dumps(compared.to_json_dict(), allow_nan=False)
        if rng.random() < 0.1:
            compare_page(compared.to_json_dict(), notes=totals(compared))
        return "compared"


def make() -> Runs:
    return Runs()
