"""Memory use stays constant over many uses: threads, sessions, executors, clients of both C libraries."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import memory_of_clients, memory_of_uses
from tests.support.memory_of_uses import ENVIRONMENT, MODELS, Usage

USES = {use: module.__name__ for module in (memory_of_uses, memory_of_clients) for use in module.USES}
MOST = 1000
"""Bytes that a use may leave behind, because the caches of Python and malloc fill slowly."""


def left_behind(python: Path | str, use: str, model: str, count: int) -> Usage:
    command = [str(python), "-m", USES[use], use, model, str(count)]
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    return Usage(*json.loads(done.stdout))


def holds(usage: Usage) -> None:
    assert usage.allocated <= MOST, usage
    assert usage.descriptors <= 0, usage
    assert usage.mapped < mmap.PAGESIZE, usage  # the least that a mapping takes


@pytest.mark.parametrize(
    "use",
    [pytest.param(use, marks=[] if use == "nnapi" else [pytest.mark.slow]) for use in USES],
)
def test_two_hundred_uses(use: str) -> None:
    holds(left_behind(sys.executable, use, "conv", 200))


@pytest.mark.slow
@pytest.mark.parametrize(("use", "model"), zip(USES, itertools.cycle(MODELS), strict=False))
def test_two_thousand_uses(use: str, model: str) -> None:
    usage = left_behind(sys.executable, use, model, 2000)
    holds(usage)
    assert usage.resident <= MOST, usage
