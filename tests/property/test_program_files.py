"""Any description of a program file gives a program that runs or is refused, or one class of error."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.cache import describe, read_program, restore, write_program
from npusim.compiler.pipeline import compile_graph
from npusim.errors import CacheError, DeviceFaultError, DeviceMemoryError, UsageError
from npusim.hw.config import load_config
from npusim.program import Program
from npusim.report.run import text
from npusim.runtime import Session
from tests.support.examples import examples
from tests.support.fuzz.damaged_programs import ODD, places
from tests.support.graphs.samples import residual_net

TINY = load_config("tiny")
PROGRAM = compile_graph(residual_net(8, 8, 1), TINY, "key")
META = json.dumps(describe(PROGRAM))


@st.composite
def descriptions(draw: st.DrawFn) -> Any:
    """Draw the description of a program, changed in one to three places."""
    document = {"all": json.loads(META)}
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(document["all"], ("all",))))
        owner: Any = document
        for key in way:
            owner = owner[key]
        change = draw(st.sampled_from(("replace", "delete", "duplicate", "nest", "move")))
        if change == "delete":
            del owner[last]
        elif change == "duplicate" and isinstance(owner, list):
            owner.insert(last, copy.deepcopy(owner[last]))
        elif change == "duplicate":
            owner[f"{last}2"] = copy.deepcopy(owner[last])
        elif change == "nest":
            owner[last] = [owner[last]]
        elif change == "move":
            other: Any = document
            for key in draw(st.sampled_from(places(document["all"], ("all",)))) if "all" in document else ():
                other = other[key]
            owner[last] = copy.deepcopy(other)
        else:
            owner[last] = copy.deepcopy(draw(st.sampled_from(ODD)))
        if "all" not in document:
            return None
    return document["all"]


def restored(description: Any) -> Program | None:
    try:
        return restore(description, PROGRAM.code, PROGRAM.constants.joined())
    except CacheError:
        return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=examples(80))
@given(description=descriptions())
def test_a_changed_description_is_refused_or_runs(description: Any) -> None:
    program = restored(description)
    if program is None:
        return
    inputs = {}
    fits = sum(program.region_bytes) <= TINY.dram.bytes
    if fits:
        inputs = {b.name: np.zeros(b.shape, b.dtype.storage) for b in program.inputs}
    with Session(TINY, cache_dir=False) as session:
        try:
            result = session.run(program, inputs, timing_only=not fits)
        except (DeviceFaultError, DeviceMemoryError, UsageError):
            return
        assert text(result, TINY, "zeros")
        json.dumps(result.to_json_dict(), allow_nan=False)


@settings(max_examples=examples(120))
@given(raw=st.binary(max_size=40), at=st.integers(0, len(META)), cut=st.integers(0, 40))
def test_changed_json_is_refused_or_read(tmp_path_factory: Any, raw: bytes, at: int, cut: int) -> None:
    changed = META.encode()
    changed = changed[:at] + raw + changed[at + cut :]
    path = tmp_path_factory.getbasetemp() / "changed.npu"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npusim.cache.json.dumps", lambda *args, **kwargs: _Encoded(changed))
        write_program(PROGRAM, path)
    with contextlib.suppress(CacheError):
        assert read_program(path).code == PROGRAM.code


class _Encoded(str):
    """A string that is encoded as these bytes."""

    def __new__(cls, raw: bytes) -> _Encoded:
        made = super().__new__(cls)
        made.raw = raw
        return made

    raw: bytes

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.raw
