"""Small programs for the tiny device, and requests to run them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.hw.config import Config, load_config
from npusim.isa.base import region
from npusim.program import CONSTANTS, FIRST_IO, Program
from npusim.runtime import Executor, Priority, Request, Result
from tests.support.programs.streams import Stream, add, copy

TINY = load_config("tiny")
SIZE = 256


def made_for(program: Program, config: Config = TINY) -> Program:
    """Return the program with the fingerprint of its device."""
    return dataclasses.replace(program, config_fingerprint=config.fingerprint(), config_name=config.name)


def adder(constant: int = 1, size: int = SIZE, slow: int = 0, config: Config = TINY, scratch: int = 0) -> Program:
    """Return y0 = x0 + constant in uint8, after ``slow`` copies of 4 KiB from scratch."""
    stream = Stream()
    waits = [stream.dma(copy(8192, region(1), 4096)) for _ in range(slow)][-1:]
    x = stream.dma(copy(0, region(FIRST_IO), size), *waits)
    c = stream.dma(copy(1024, region(CONSTANTS), size))
    done = stream.vector(add(2048, 0, 1024, size), x, c)
    stream.dma(copy(region(FIRST_IO + 1), 2048, size), done)
    needed = max(scratch, 4096 if slow else 0)
    return made_for(stream.program([size], [size], scratch=needed, constants=bytes([constant] * size)), config)


def values(seed: int = 0, size: int = SIZE) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)


def request(program: Program, x: Any, priority: Priority = Priority.MEDIUM, **options: Any) -> Request:
    return Request(program, {"x0": x}, priority=priority, **options)


def run(executor: Executor, program: Program, x: Any, **options: Any) -> Result:
    return executor.submit(request(program, x, **options)).wait(60)
