"""Types of the compiled tile search; the meaning of each is in its docstring."""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from npusim.timing._prices import Prices

_Numbers = npt.NDArray[np.int64]

FIGURES: tuple[str, ...]

_Tile = tuple[int, int, int, int, int, bool, bool, int, int]

def cores_served(cores: int, bandwidth: int, multicast: bool, exchange: int) -> int: ...

@disjoint_base
class Search:
    def __init__(
        self,
        problem: object,
        device: object,
        cuts: Sequence[tuple[int, int, int, int, int]],
        areas: Sequence[tuple[int, int]],
    ) -> None: ...
    def choose(self, budget: int) -> tuple[_Tile | None, int, int, int]: ...
    def within(self, budget: int, limit: int) -> list[tuple[int, int, _Tile]]: ...
    def bound(self) -> int: ...
    def score(self, tile: _Tile) -> int: ...
    def latency(self, tile: _Tile, again: bool) -> tuple[int, int]: ...
    def computing(self, tile: _Tile) -> int: ...
    def banked(self, tile: _Tile) -> int: ...

@final
class Devices:
    def __init__(
        self,
        moves: list[Prices],
        products: _Numbers,
        move: _Numbers,
        near: _Numbers,
        bandwidth: _Numbers,
        constants_bandwidth: _Numbers,
        exchange: _Numbers,
        one_channel: npt.NDArray[np.uint8],
    ) -> None: ...

@final
class SharedSearch(Search):
    def __init__(
        self,
        problem: object,
        device: object,
        cuts: Sequence[tuple[int, int, int, int, int]],
        areas: Sequence[tuple[int, int]],
        devices: Devices,
        products: Callable[[int, int], list[Prices]],
    ) -> None: ...

@final
class ManySearch:
    def __init__(self, searches: list[SharedSearch], kinds: _Numbers, begin: _Numbers, kilo: _Numbers) -> None: ...
    def bounds(self, numbers: _Numbers, into: npt.NDArray[np.float64]) -> int: ...
    def choose(
        self,
        numbers: _Numbers,
        budgets: _Numbers,
        pieces: _Numbers,
        scores: npt.NDArray[np.float64],
        latencies: npt.NDArray[np.float64],
        figures: npt.NDArray[np.float64] | None = None,
        near: int = 0,
    ) -> int: ...
