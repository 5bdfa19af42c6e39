"""DRAM models: one file per kind; a new file with a class ``Dram`` is a new kind."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.work import DmaWork


class DramModel(Protocol):
    """What the simulator and the cost models ask a DRAM."""

    @property
    def latency_ps(self) -> int:
        """From a request at the DRAM to its first datum."""

    @property
    def bandwidth(self) -> int:
        """What long sequential streams reach together, in bytes a second."""

    def transfer_bytes(self, work: DmaWork) -> int:
        """Bytes on the pins for a transfer, with what its bursts waste; 0 if it does not touch the DRAM."""


def kinds() -> tuple[str, ...]:
    """The kinds of DRAM, sorted: the modules of this package."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@functools.lru_cache(maxsize=64)
def dram_model(config: Config) -> DramModel:
    """The model that ``dram.kind`` names."""
    module = importlib.import_module(f"{__name__}.{config.dram.kind}")
    model: DramModel = module.Dram(config)
    return model
