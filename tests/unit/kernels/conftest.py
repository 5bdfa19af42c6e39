from __future__ import annotations

from collections.abc import Iterator

import pytest

from npusim import _core


@pytest.fixture(autouse=True)
def best_instruction_set() -> Iterator[None]:
    """Restore the best instruction set after each test."""
    yield
    _core.set_simd("auto")
