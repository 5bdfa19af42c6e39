"""Rules of memory pools, and their bytes for rules that read constants."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import overload

from ..errors import InvalidModelError, StatusError
from ..memory import HARDWARE_BUFFER, Memory
from ..memory.mapping import Mapping
from ..operations.constants import Pool
from ..types import Model


def check_pools(model: Model) -> None:
    """Check that every pool is existing memory. Raises InvalidModelError."""
    for number, pool in enumerate(model.pools):
        problem = pool_problem(pool)
        if problem:
            raise InvalidModelError(f"pool {number}", problem)


def pool_problem(pool: Memory) -> str | None:
    """Return the problem with a pool, or None. It does not check whether the driver can map it."""
    name: object = pool.name
    size: object = pool.size
    if not isinstance(name, str) or not isinstance(size, int) or size < 0:
        return f"memory must have a name and a size, got {pool!r}"
    if not size and name != HARDWARE_BUFFER:
        return f"memory {pool.name!r} must have a size > 0"
    if not pool.valid:
        return f"memory {pool.name!r} must have an open descriptor"
    return None


class MappedOnDemand(Sequence[Pool]):
    """The bytes of pools, each mapped on first use; None for one that cannot be mapped.

    In that case its constants are unknown to the rules, and the preparation, which needs them, fails with the reason.
    """

    def __init__(self, pools: Sequence[Memory]) -> None:
        self._pools = pools
        self._mapped: dict[int, Mapping | None] = {}

    def __len__(self) -> int:
        return len(self._pools)

    @overload
    def __getitem__(self, index: int) -> Pool: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pool]: ...
    def __getitem__(self, index: int | slice) -> Pool | Sequence[Pool]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if index not in self._mapped:
            self._mapped[index] = None
            with contextlib.suppress(StatusError):
                self._mapped[index] = self._pools[index].map(writable=False)
        return self._mapped[index]

    def confirm(self) -> None:
        """Raise FileCutError if bytes were read after their file was truncated."""
        for mapped in self._mapped.values():
            if mapped is not None:
                mapped.confirm()
