"""Collects the results of the runs that PyTorch's tensors cannot carry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from npusim.runtime import Result


@dataclass
class RunTrace:
    """The results of all runs within a ``with trace()``, in order."""

    results: list[Result] = field(default_factory=list)

    @property
    def time_ps(self) -> int:
        """Simulated time of all runs on the device."""
        return sum(result.time_ps for result in self.results)

    @property
    def cycles(self) -> int:
        """Cycles of all runs."""
        return sum(result.cycles for result in self.results)


_OPEN: ContextVar[tuple[RunTrace, ...]] = ContextVar("_OPEN", default=())


@contextlib.contextmanager
def trace() -> Iterator[RunTrace]:
    """Collect the results of the runs of this thread within the block."""
    found = RunTrace()
    token = _OPEN.set((*_OPEN.get(), found))
    try:
        yield found
    finally:
        _OPEN.reset(token)


def noted(result: Result) -> Result:
    """Add a result to all open traces of this thread. Returns it."""
    for each in _OPEN.get():
        each.results.append(result)
    return result
