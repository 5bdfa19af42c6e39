"""Program files made to hang, to access host memory, or to confuse a reader: each ends in one error.

They match the current device: the program runs before the change, so it is the change that is refused.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.cache import describe, read_program
from npusim.dtypes import DType
from npusim.errors import CacheError, DeviceFaultError, NpusimError
from npusim.hw.config import load_config
from npusim.isa.base import Command, region
from npusim.isa.reduction import Resample
from npusim.program import FIRST_IO, Program
from npusim.runtime import Session
from tests.support.fuzz.damaged_programs import packed
from tests.support.programs.streams import Stream, copy, fill, gather, negate

CONFIG = load_config("tiny")
PATIENCE_S = 2.0
COPY, FILL, NEGATE, GATHER, RESAMPLE = range(5)
"""Commands of the program by position."""


def _stream() -> Stream:
    made = Stream()
    x = made.dma(copy(0, region(FIRST_IO), 64))
    filled = made.dma(fill(0x400, 64, 0))
    negated = made.vector(negate(0x800, 0, 64), x, filled)
    taken = made.dma(gather(0xA00, 0, 0x400, 16, 64), negated)
    resample = Resample(
        DType.FLOAT32, 0x1000, (0, 4, 4), 0x400, (0, 4, 4), (1, 4, 1), 4, 0x440, 0x480, 1
    )  # fmt: skip
    made.vector(resample, taken)
    return made


def _file(commands: list[Command], change: Callable[[dict[str, Any]], None] = lambda description: None) -> bytes:
    made = _stream()
    made.commands = commands
    program = dataclasses.replace(
        made.program([64], [64]), config_name=CONFIG.name, config_fingerprint=CONFIG.fingerprint()
    )
    description = json.loads(json.dumps(describe(program)))
    change(description)
    return packed(json.dumps(description).encode(), program.code, b"")


def _run(path: Path, data: bytes) -> Program:
    path.write_bytes(data)
    program = read_program(path)
    with Session(CONFIG, cache_dir=False) as session:
        session.run(program, {"x0": np.zeros(64, np.uint8)})
    return program


def test_the_program_runs_before_it_is_changed(tmp_path: Path) -> None:
    assert _run(tmp_path / "good.npu", _file(_stream().commands)).config_fingerprint == CONFIG.fingerprint()


STANDING = {"dst_strides": (0, 0, 0, 0), "src_strides": (0, 0, 0, 0)}
FIELDS: dict[str, tuple[int, dict[str, Any], str]] = {
    "a copy without end": (
        COPY,
        {"dims": (2**20, 2**20, 1, 1), "dst_strides": (0, 0, 0, 0), "src_strides": (0, 0, 0, 0)},
        "goes through",
    ),
    "a unary operation without end": (NEGATE, {"dims": (2**16, 2**16, 64, 1)}, "goes through"),
    "a gather without end": (GATHER, {"dims": (2**31, 2**31, 1)}, "goes through"),
    "a resampling without end": (RESAMPLE, {"taps": 2**31, "dims": (2**20, 1, 1)}, "goes through"),
    "a gather over its indices": (GATHER, {"dst": 0x400}, "overlap"),
    "a resampling over its indices": (RESAMPLE, {"dst": 0x440}, "overlap"),
    "a resampling over its source": (RESAMPLE, {"dst": 0x400}, "overlap"),
    "a copy from far away": (COPY, {"src": region(FIRST_IO, 1 << 40)}, "the memory has 64"),
    "a copy behind the memory": (COPY, {"dst": CONFIG.sram.bytes - 8}, "sram"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_changed_command_is_a_fault_of_the_program(tmp_path: Path, name: str) -> None:
    place, fields, said = FIELDS[name]
    commands = _stream().commands
    changed = dataclasses.replace(commands[place].instruction, **fields)
    assert changed != commands[place].instruction
    commands[place] = dataclasses.replace(commands[place], instruction=changed)
    began = time.process_time()
    with pytest.raises(DeviceFaultError, match=said) as caught:
        _run(tmp_path / "changed.npu", _file(commands))
    assert caught.value.code in ("PROGRAM", "ADDRESS")
    assert f"command {place} " in str(caught.value)
    assert time.process_time() - began < PATIENCE_S


DESCRIPTIONS: dict[str, tuple[str, tuple[Any, ...], Any]] = {
    "text in a shape": ("outputs", (0, 2, 0), "\0"),
    "a type in the place of a region": ("inputs", (0, 1), "bfloat16"),
    "a negative extent": ("outputs", (0, 2, 0), -63),
    "a number in the place of a name": ("ops", (0, 0), -1),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_changed_description_is_refused_by_its_place(tmp_path: Path, name: str) -> None:
    key, place, value = DESCRIPTIONS[name]

    def change(description: dict[str, Any]) -> None:
        inside = description[key]
        for step in place[:-1]:
            inside = inside[step]
        assert inside[place[-1]] != value
        inside[place[-1]] = value

    where = key + "".join(f"[{step}]" for step in place)
    with pytest.raises(CacheError) as caught:
        _run(tmp_path / "changed.npu", _file(_stream().commands, change))
    assert f"the description does not make sense: {where}: must be " in str(caught.value)


def test_a_stream_of_another_device_is_refused_for_that_alone(tmp_path: Path) -> None:
    """So none of the refusals above is this one."""
    with pytest.raises(NpusimError, match="fingerprint"):
        _run(
            tmp_path / "other.npu",
            _file(_stream().commands, lambda description: description.update(fingerprint="0" * 64)),
        )
