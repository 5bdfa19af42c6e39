from __future__ import annotations

from collections.abc import Iterator

import pytest

from npusim import _core


@pytest.fixture(autouse=True)
def best_instruction_set() -> Iterator[None]:
    """Whatever a test chooses, the next one starts with the best."""
    yield
    _core.set_simd("auto")
