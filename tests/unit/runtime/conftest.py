"""An executor on a small device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from npusim.runtime import Executor
from tests.support.programs.executor_jobs import TINY


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(TINY) as executor:
        yield executor
