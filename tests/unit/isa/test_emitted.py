"""Cached facts about streams written by this process depend on their bytes only."""

from __future__ import annotations

import dataclasses
import gc
import pickle

import pytest

from npusim.errors import ProgramError
from npusim.isa.base import Command, Unit, decode, encode, region
from npusim.isa.control import Halt
from npusim.isa.emitted import emit, emitted
from npusim.isa.verify import Limits
from tests.support.programs.streams import Stream, copy

LIMITS = Limits((0, 256), 1024, 0, 1, 1, ("matrix", "vector", "scalar"))


def commands(size: int = 64) -> list[Command]:
    stream = Stream()
    stream.dma(copy(0, region(1), size))
    return [*stream.commands, Command(0, Unit.CONTROL, 0, (), Halt())]


def test_the_code_is_the_encoding_and_each_command_ends_where_the_next_begins() -> None:
    made = emit(commands(), LIMITS)
    assert made.code == encode(commands())
    assert list(decode(made.code)) == list(made.commands)
    sizes = [command.size for command in made.commands]
    assert made.ends == (sizes[0], sum(sizes))


def test_equal_bytes_are_known_however_they_came() -> None:
    made = emit(commands(), LIMITS)
    assert emitted(bytes(bytearray(made.code)), LIMITS) is made


def test_other_bytes_are_not_known() -> None:
    made = emit(commands(), LIMITS)
    changed = bytearray(made.code)
    changed[-1] ^= 1
    assert emitted(bytes(changed), LIMITS) is None
    assert emitted(encode(commands(65)), LIMITS) is None


def test_they_are_forgotten_with_the_program() -> None:
    made = emit(commands(63), LIMITS)
    code = made.code
    del made
    gc.collect()
    assert emitted(code, LIMITS) is None


def test_another_process_does_not_get_them() -> None:
    assert pickle.loads(pickle.dumps(emit(commands(), LIMITS))) is None


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({"region_bytes": (0, 256)}, True),
        ({"region_bytes": [64, 257]}, True),  # a driver may give more
        ({"region_bytes": (0, 255)}, False),
        ({"region_bytes": (0,)}, False),
        ({"region_bytes": (0, 256, 0)}, False),
        ({"sram_bytes": 2048}, False),
        ({"acc_bytes": 64}, False),
        ({"cores": 2}, False),
        ({"dma_channels": 2}, False),
        ({"units": ("matrix", "vector")}, False),
        ({"multicast": True}, False),
    ],
)
def test_they_are_known_on_the_device_they_were_written_for(change: dict[str, object], known: bool) -> None:
    made = emit(commands(), LIMITS)
    assert (emitted(made.code, dataclasses.replace(LIMITS, **change)) is made) == known  # type: ignore[arg-type]


def test_what_no_field_holds_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"^dma\.copy: "):
        emit(commands(-1), LIMITS)
