"""The cost of work on a device: the functions used by both compiler and simulator."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

from npusim.errors import ProgramError
from npusim.hw.config import Config
from npusim.hw.units import dma, matrix_direct, scalar, vector
from npusim.hw.units.base import COMPUTE, LATENCY, MEMORY, Cost
from npusim.units import cycles_to_ps
from npusim.work import ControlWork, DmaWork, MatrixWork, ScalarWork, VectorWork, Work

__all__ = ["COMPUTE", "LATENCY", "MEMORY", "Cost", "CostModel", "cost", "cost_model"]

FREE = Cost(0, 0, (), COMPUTE)


class CostModel:
    """The cost functions of one device, cached because a network repeats few shapes many times."""

    def __init__(self, config: Config) -> None:
        self.config = config
        # Without a matrix unit, any model raises the right error.
        kind = config.matrix.model if config.matrix else "systolic"
        self._model = model = importlib.import_module(f"npusim.hw.units.matrix_{kind}")
        self._matrix: Callable[[Config, MatrixWork], Cost] = model.cost
        # A cache per instance: one on the method would be shared by all devices and keep them alive.
        self.cost = functools.lru_cache(maxsize=1 << 14)(self.once)
        self.dram_bytes = functools.lru_cache(maxsize=1 << 14)(functools.partial(dma.pins_bytes, config))

    @functools.cached_property
    def transfer_ps(self) -> Callable[[DmaWork], tuple[int, int]]:
        """A function of a transfer: (picoseconds as in :meth:`once`, picoseconds between consecutive equal
        transfers)."""
        return dma.pricing(self.config)

    @functools.cached_property
    def stream_ps(self) -> Callable[[DmaWork], int]:
        """A function of a transfer: picoseconds between consecutive equal transfers."""
        ask = self.transfer_ps
        return functools.lru_cache(maxsize=1 << 14)(lambda work: ask(work)[1])

    @functools.cached_property
    def product_ps(self) -> Callable[[MatrixWork], int]:
        """A function of a product: picoseconds between consecutive equal products. They differ from :meth:`once` only
        for units with look-ahead."""
        pricing: Callable[[Config], Callable[[MatrixWork], int]] | None = getattr(self._model, "pricing", None)
        if pricing is not None:
            return pricing(self.config)

        def ps(work: MatrixWork) -> int:
            price = self._matrix(self.config, work)
            ahead, front = ahead_ps(self.config, work, price)
            return max(front, price.ps - ahead)

        return ps

    def once(self, work: Work) -> Cost:
        """The cost of a piece of work, without a cache."""
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


def depths(config: Config) -> tuple[int, int, int, int]:
    """How many commands a matrix unit, a vector unit, a scalar unit and a DMA channel may have begun at once."""
    matrix, vector_unit = config.matrix, config.vector
    beside = matrix is not None and matrix.direct is not None and matrix.direct.outputs_beside
    hidden = vector_unit is not None and vector_unit.setup_hidden
    return 1 + beside, 1 + hidden, 1, config.dma.in_flight


def ahead_ps(config: Config, work: Work, price: Cost) -> tuple[int, int]:
    """Picoseconds of ``price`` that may overlap the previous command on a matrix or vector unit (set-up, or work before
    the sums leave), and picoseconds during which no other command may begin."""
    of_matrix, of_vector, _, _ = depths(config)
    if isinstance(work, VectorWork) and of_vector > 1:
        assert config.vector is not None
        hidden = min(price.ps, cycles_to_ps(config.vector.setup_cycles, config.vector_hz))
        return hidden, hidden
    if isinstance(work, MatrixWork) and of_matrix > 1 and config.matrix is not None and config.matrix.model == "direct":
        ahead, front = (cycles_to_ps(cycles, config.matrix_hz) for cycles in matrix_direct.beside(config, work))
        return min(ahead, price.ps), min(front, price.ps)
    return 0, 0


@functools.lru_cache(maxsize=64)
def cost_model(config: Config) -> CostModel:
    """The cost functions of a device. Keep the result if many pieces of work are priced."""
    return CostModel(config)


def cost(config: Config, work: Work) -> Cost:
    """The time of ``work`` on its unit of ``config``, without other work on the device.

    Raises ProgramError if the device has no such unit, or the unit does not support the type of the work.
    """
    return cost_model(config).cost(work)
