"""Types of the loops over commands; the meaning of each is in its docstring."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from npusim.isa.base import Command
from npusim.work import Work

_Made = TypeVar("_Made")

def encode(commands: Sequence[Command]) -> tuple[bytes, list[int]]: ...
def tally(commands: Sequence[Command]) -> list[tuple[Command, int]]: ...
def steps(
    commands: Sequence[Command],
    ends: Sequence[int],
    index: Mapping[tuple[int, int], int],
    charge: Callable[[Work], object],
    make: Callable[..., _Made],
) -> list[_Made]: ...
