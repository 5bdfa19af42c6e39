"""A signal handler ends every long kernel. Each of these calls would take days."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from npusim import _core
from npusim._core import Strided
from npusim.dtypes import DType

F32, I32, I64 = int(DType.FLOAT32), int(DType.INT32), int(DType.INT64)
LONG = 1 << 23
ROOM = np.zeros(1 << 16, np.uint8)


class InterruptError(Exception):
    """Raised by the handler."""


def at(*strides: int, offset: int = 0) -> Strided:
    return Strided(ROOM, offset, strides)


ONE = at(0, 0, 0, 0)
D4, D3 = (LONG, LONG, 1, 1), (LONG, 1, LONG)
W = (1, 1, 1, 1, 1, 1)
FLOATS = np.zeros((1, 1), np.float32)
BOXES = np.tile(np.array([0, 0, 1, 1], np.float32), (1 << 18, 1)) + np.arange(1 << 18, dtype=np.float32)[:, None] * 2


def nms() -> None:
    """No box overlaps another, so each is compared with all."""
    n = len(BOXES)
    out = np.zeros(n, np.float32), np.zeros((n, 4), np.float32), np.zeros(n, np.int32), np.zeros(n, np.int32)
    wide = np.repeat(BOXES[:, None], 2, 1).reshape(n, 8)
    _core.box_nms_limit(np.ones((n, 2), np.float32), wide, np.zeros(n, np.int32), 0, -1, 0, 0.5, 0.5, 0.0, *out)


def regions(kernel: Callable[..., Any], *more: Any) -> None:
    image, count = np.zeros((1, 64, 64, 64), np.float32), 1 << 20
    rois = np.tile(np.array([0, 0, 64, 64], np.float32), (count, 1))
    kernel(image, rois, np.zeros(count, np.int32), 1.0, 1.0, *more, np.zeros((count, 1, 1, 64), np.float32))


KERNELS: dict[str, Callable[[], Any]] = {
    "unary": lambda: _core.unary(1, F32, ONE, ONE, D4),
    "binary": lambda: _core.binary(0, F32, ONE, ONE, ONE, D4),
    "cast": lambda: _core.cast(F32, ONE, I32, ONE, D4),
    "quantize": lambda: _core.quantize(int(DType.INT8), ONE, F32, ONE, ONE, ONE, D4),
    "dequantize": lambda: _core.dequantize(F32, ONE, int(DType.INT8), ONE, ONE, ONE, D4),
    "copy": lambda: _core.copy(ONE, ONE, D4, 4),
    "copy by planes": lambda: _core.copy(at(0, 0, 0, 1), at(0, 0, 1, 0), (LONG, LONG, 64, 64), 1),
    "fill": lambda: _core.fill(ONE, D4, 4, 0),
    "select": lambda: _core.select(4, ONE, ONE, ONE, ONE, D4),
    "reduce": lambda: _core.reduce(0, F32, ONE, ONE, D4, True),
    "reduce_finish": lambda: _core.reduce_finish(0, F32, ONE, ONE, D4, 1),
    "gather": lambda: _core.gather(at(0, 0, 0), at(0, 0, 0), at(0, 0, 0), I32, D3, 1, 4),
    "scatter": lambda: _core.scatter(at(0, 0, 0), at(0, 0, 0), at(0, 0, 0), I32, D3, 1, F32, 0),
    "softmax": lambda: _core.softmax(F32, at(0, 0, 0), at(0, 0, 0), D3, False),
    "cumsum": lambda: _core.cumsum(I32, at(0, 0, 0), at(0, 0, 0), D3, False, False),
    "arg_reduce": lambda: _core.arg_reduce(0, F32, at(0, 0, 0), at(0, 0, 0), D3, False),
    "topk": lambda: _core.topk(F32, at(0, 0, 0), at(0, 0, 0), at(0, 0, 0), D3, 1, True),
    "pool": lambda: _core.pool(0, F32, at(0, 0, 0), at(0, 0, 0), (LONG, LONG, 1), (LONG, LONG), W, (0,) * 4, False),
    "resample": lambda: _core.resample(F32, at(0, 0, 0), at(0, 0, 0), (LONG, 1, LONG), 1, at(), at(), 1),
    "conv": lambda: _core.conv(F32, F32, at(0, 0, 0), at(0), at(0, 0, 0), (1, LONG, LONG, 4, 4), W, 4, 0, True),
    "depthwise": lambda: _core.depthwise(F32, F32, at(0, 0), at(), at(0, 0), (LONG, LONG, 4, 1), W, 0, True),
    "finish": lambda: _core.finish(F32, F32, at(0, 0, 0), at(0, 0, 0), (1, LONG, LONG, 4), None, None, 0, -1.0, 1.0),
    "box_nms_limit": nms,
    "roi_align": lambda: regions(_core.roi_align, 64, 64),
    "roi_pool": lambda: regions(_core.roi_pool),
}


@pytest.fixture
def handler() -> Iterator[None]:
    """Install a handler for SIGALRM that raises."""

    def interrupt(number: int, frame: object) -> None:
        raise InterruptError

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_signal_ends_it(handler: None, kernel: str) -> None:
    def work() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        KERNELS[kernel]()

    with pytest.raises(InterruptError):
        work()
    _core.unary(1, F32, ONE, ONE, (1, 1, 1, 1 << 18))  # and no other that comes after
