"""What a piece of work costs on a device: the one function that compiler and simulator both call."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

from npusim.errors import ProgramError
from npusim.hw.config import Config
from npusim.hw.memory import dram_model
from npusim.hw.units import dma, scalar, vector
from npusim.hw.units.base import COMPUTE, LATENCY, MEMORY, Cost
from npusim.work import ControlWork, DmaWork, MatrixWork, ScalarWork, VectorWork, Work

__all__ = ["COMPUTE", "LATENCY", "MEMORY", "Cost", "CostModel", "cost", "cost_model"]

FREE = Cost(0, 0, (), COMPUTE)


class CostModel:
    """The cost functions of one device, with a memory: a network repeats few shapes many times."""

    def __init__(self, config: Config) -> None:
        self.config = config
        kind = config.matrix.model if config.matrix else "systolic"  # without a unit any model names its absence
        self._model = model = importlib.import_module(f"npusim.hw.units.matrix_{kind}")
        self._matrix: Callable[[Config, MatrixWork], Cost] = model.cost
        # A cache for each device: one on the method would be shared by all of them, and keep them alive.
        self.cost = functools.lru_cache(maxsize=1 << 14)(self.once)
        self.dram_bytes = functools.lru_cache(maxsize=1 << 14)(dram_model(config).transfer_bytes)

    @functools.cached_property
    def transfer_ps(self) -> Callable[[DmaWork], tuple[int, int]]:
        """Of transfers what ``once`` answers, the picoseconds alone; and those from one to the next of a stream."""
        return dma.pricing(self.config)

    @functools.cached_property
    def stream_ps(self) -> Callable[[DmaWork], int]:
        """Picoseconds from one transfer to the next of a stream of equals."""
        ask = self.transfer_ps
        return functools.lru_cache(maxsize=1 << 14)(lambda work: ask(work)[1])

    @functools.cached_property
    def product_ps(self) -> Callable[[MatrixWork], int]:
        """Of products what ``once`` answers, the picoseconds alone."""
        pricing: Callable[[Config], Callable[[MatrixWork], int]] | None = getattr(self._model, "pricing", None)
        return pricing(self.config) if pricing is not None else lambda work: self._matrix(self.config, work).ps

    def once(self, work: Work) -> Cost:
        """What ``cost`` answers, for who remembers it."""
        match work:
            case MatrixWork():
                return self._matrix(self.config, work)
            case VectorWork():
                return vector.cost(self.config, work)
            case DmaWork():
                return dma.cost(self.config, work)
            case ScalarWork():
                return scalar.cost(self.config, work)
            case ControlWork():
                return FREE
            case _:
                raise ProgramError(f"no cost model for {type(work).__name__}")


@functools.lru_cache(maxsize=64)
def cost_model(config: Config) -> CostModel:
    """The cost functions of a device; ask once and keep it where many works are priced."""
    return CostModel(config)


def cost(config: Config, work: Work) -> Cost:
    """What ``work`` takes of its unit on ``config``, alone on the device.

    Raises ProgramError if the device has no such unit, or the unit does not compute with the work's type.
    """
    return cost_model(config).cost(work)
