"""Shipped devices that stand for the others in tests that would be slow on every device."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.hw.config import list_configs, load_config

EACH_MODEL = ("edge", "gemmini_mesh16", "nvdla_2048", "intel_npu27", "server", "tiny", "rk3588")
"""One device for every matrix model, and one with several cores for each that has some."""


def missing() -> set[tuple[str, bool]]:
    """Return pairs (matrix model, has several cores) of shipped devices that :data:`EACH_MODEL` does not cover."""
    kinds = {
        name: (config.matrix.model, config.cores > 1)
        for name, config in ((name, load_config(name)) for name in list_configs())
        if config.matrix is not None
    }
    return set(kinds.values()) - {kinds[name] for name in EACH_MODEL}


def each_model() -> list[Any]:
    """Return all shipped device names as test parameters; those not in :data:`EACH_MODEL` are marked slow."""
    return [pytest.param(name, marks=[] if name in EACH_MODEL else [pytest.mark.slow]) for name in list_configs()]
