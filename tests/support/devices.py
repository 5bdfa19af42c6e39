"""Shipped devices that stand for the others where a test of each of them would be slow."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.hw.config import list_configs, load_config

EACH_MODEL = ("edge", "gemmini_mesh16", "nvdla_2048", "intel_npu27", "server", "tiny")
"""Devices with every model of a matrix unit, and one with several cores."""


def missing() -> set[tuple[str, bool]]:
    """Matrix models, with several cores or one, that a shipped device has and none of :data:`EACH_MODEL`."""
    kinds = {
        name: (config.matrix.model, config.cores > 1)
        for name, config in ((name, load_config(name)) for name in list_configs())
        if config.matrix is not None
    }
    return set(kinds.values()) - {kinds[name] for name in EACH_MODEL}


def each_model() -> list[Any]:
    """The names of all shipped devices, as parameters of a test: those beside :data:`EACH_MODEL` are slow."""
    return [pytest.param(name, marks=[] if name in EACH_MODEL else [pytest.mark.slow]) for name in list_configs()]
