"""The mappings that an execution or a burst keeps of the pools of its requests."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from .mapping import Identity, Mapping
from .shared import Memory

Kept = tuple[Identity | None, Mapping]
"""A cached mapping, and the identity of its memory."""


class PoolMappings:
    """The mapped pools of one execution; ``fresh`` counts new mappings.

    ``kept`` outlives the execution: a burst keeps its mappings there under ``keys``, one for each pool of the request.
    A pool whose key is None, or that has none, is mapped for this execution alone.
    """

    def __init__(self, kept: MutableMapping[int, Kept] | None = None, keys: Sequence[int | None] = ()) -> None:
        self.fresh = 0
        self._kept = {} if kept is None else kept
        self._keys = keys
        self._once: dict[int, Mapping] = {}

    def get(self, pool_index: int, memory: Memory) -> Mapping:
        """This pool's mapping. Raises StatusError as ``Memory.map`` does, FileCutError if its file is too short now."""
        key = self._keys[pool_index] if pool_index < len(self._keys) else None
        mapping = self._once.get(pool_index) if key is None else self._find(key, memory)
        if mapping is None:
            mapping = memory.map()
            self.fresh += 1
            if key is None:
                self._once[pool_index] = mapping
            else:
                self._kept[key] = (memory.identity, mapping)
        mapping.check()
        return mapping

    def _find(self, key: int, memory: Memory) -> Mapping | None:
        # The client chooses the key, so check that it still refers to the same memory.
        identity, mapping = self._kept.get(key, (None, None))
        if mapping is None or mapping.cut or identity is None or identity != memory.identity:
            return None
        return mapping
