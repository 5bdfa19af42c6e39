"""Types of the compiled clock; the meaning of each is in its docstring."""

from collections.abc import Callable, Sequence
from typing import final

from npusim.isa.base import Command
from npusim.work import Work

_Stalls = list[tuple[int, int]]

@final
class TimingRun:
    @property
    def length_ps(self) -> int: ...
    @property
    def link_busy_ps(self) -> int: ...
    @property
    def order(self) -> list[int]: ...
    @property
    def begins(self) -> list[int]: ...
    @property
    def ends(self) -> list[int]: ...
    @property
    def units(self) -> list[tuple[int, int, int, int, _Stalls]]: ...
    @property
    def sequencer(self) -> tuple[int, int, _Stalls, int]: ...

def timing_run(
    steps: Sequence[object],
    depths: Sequence[int],
    cores: int,
    lead_ps: int,
    cycle_ps: int,
    layer_ps: int,
    by_layer: bool,
    depth: int,
    latency_ps: int,
    fetch_rate: int,
    fetch_bytes: int,
    capacities: Sequence[int],
    ports: Sequence[int],
    code_rank: int,
    by_need: bool,
    no_op: int,
    code_apart: bool,
) -> TimingRun | None: ...
def forecast(
    commands: Sequence[Command],
    charge: Callable[[Work], tuple[int, int, int, int, int, int, int]],
    cycle_ps: int,
    depth: int,
    latency_ps: int,
    fetch_rate: int,
    fetch_bytes: int,
    capacities: Sequence[int],
    ports: Sequence[int],
    by_need: bool,
    depth_of: Callable[[int], int],
    code_apart: bool,
    by_layer: bool,
    launch_ps: int,
) -> int: ...
