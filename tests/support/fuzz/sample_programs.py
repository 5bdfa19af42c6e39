"""Small programs for ``tiny`` and ``edge`` that together contain every instruction and every shipped routine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim import _core
from npusim.cache import describe
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.base import Command, decode, region
from npusim.isa.dma import SYMBOL_BITS, Fetch, MulticastExpand
from npusim.isa.functions import Binary
from npusim.ops.routine import routine_attrs
from npusim.program import CONSTANTS, FIRST_IO, Program
from tests.support.fuzz.weight_streams import weights
from tests.support.graphs.every_kind import CASES, Maker
from tests.support.programs.streams import ZERO4, Stream, copy, exchange, expand, fill, keeper, multicast
from tests.support.shipped_routines import TYPES

_LITTLE = {
    "dram.bytes": 1 << 20,
    "sram.bytes": 128 << 10,
    "interconnect.multicast": True,
    "dma.decoder_weights_per_cycle": 16,
}
_WAY = {"cores": 2, "exchange.bytes_per_cycle": 32}
CONFIGS = (load_config("tiny").with_(**_LITTLE), load_config("edge").with_(**_LITTLE, **_WAY))
"""Small DRAM, because it is cleared for each case and limits the host memory of a case. All instructions are allowed,
except exchange on the single core."""
_BLOCKS = np.repeat([[7], [8]], 8, axis=0) + np.zeros((1, 5), np.int32)
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """A program, its parts that can be changed, and input values that make it run to its end."""

    program: Program
    config: int
    description: str
    commands: tuple[Command, ...]
    constants: bytes
    feeds: dict[str, Array]


def _graphs() -> Iterator[tuple[Graph, dict[str, Array]]]:
    for case in CASES.values():
        yield case.graph()
    for name, (types, params, shapes) in TYPES.items():
        maker = Maker()
        # Values that rise along the last axis are valid boxes within a small image.
        inputs = [maker.x(*shape, dtype=dtype, low=0, high=2) for shape, dtype in zip(shapes, types, strict=True)]
        maker.feeds = {key: np.sort(value, axis=-1) for key, value in maker.feeds.items()}
        yield (
            maker.build.finish(maker.build.add_all("routine", inputs, routine_attrs(f"npusim.{name}", **params))),
            (maker.feeds),
        )
    maker = Maker()
    product = maker.add("cumprod", maker.x(3, 4, 5), axis=1, exclusive=True, reverse=False)
    yield maker.build.finish([product]), maker.feeds
    maker = Maker()
    grown = maker.build.finish([maker.add("concat", maker.x(2, 3, 4), maker.x(2, 1, 4), axis=1)])
    grown.cache_rows = 6
    yield grown, maker.feeds
    maker = Maker()  # a row longer than SRAM
    yield maker.build.finish([maker.add("softmax", maker.x(1, 20_000), axis=1, log=False)]), maker.feeds
    maker = Maker()  # packed weights with scales and zero points per block of 8 of the 16 rows
    numbers = maker.quantised(maker.c(16, 5, dtype=DType.UINT8, high=16), np.full((16, 5), 0.5), _BLOCKS)
    yield maker.build.finish([maker.add("matmul", maker.x(3, 16), numbers)]), maker.feeds
    maker = Maker()  # 64-bit sums
    pixels = maker.quantised(maker.x(2, 600, dtype=DType.INT16), 0.25, 0)
    numbers = maker.quantised(maker.build.const(np.full((600, 3), -128, np.int8)), 0.5, 0)
    product = maker.add("matmul", pixels, numbers)
    yield maker.build.finish([maker.quantise(product, 64.0, 0, DType.INT16)]), maker.feeds
    maker = Maker()  # per-channel values added after the scales
    pixels, numbers = (maker.quantised(make(6, 6, dtype=DType.INT8), 0.25, 0) for make in (maker.x, maker.c))
    shift = maker.build.const(np.linspace(0.1, 0.7, 6, dtype=np.float32).reshape(1, 6))
    yield maker.build.finish([maker.bi(Binary.ADD, maker.add("matmul", pixels, numbers), shift)]), maker.feeds


def _filled() -> tuple[Program, dict[str, Array]]:
    """Fill memory, which compiled programs currently do not do."""
    stream = Stream()
    filled = stream.dma(fill(0, 64, 7))
    stream.dma(copy(region(2), 0, 64), filled)
    return stream.program([], [64]), {}


def _sent(cores: int) -> tuple[Program, dict[str, Array]]:
    """Copy to each core of a mask, which compiled programs do not do on one core."""
    stream = Stream()
    sent = stream.dma(multicast(0, region(2), 64, (1 << cores) - 1))
    stream.dma(copy(region(3), 0, 64), sent, core=cores - 1)
    return stream.program([64], [64]), {"x0": np.arange(64, dtype=np.uint8)}


def _handed() -> tuple[Program, dict[str, Array]]:
    """Pass bytes from one core to another. Needs two cores."""
    stream = Stream()
    loaded = stream.dma(copy(0, region(2), 64))
    passed = stream.dma(exchange(64, 0, 64, 0, 2), loaded)
    stream.dma(copy(region(3), 64, 64), passed, core=1)
    return stream.program([64], [64]), {"x0": np.arange(64, dtype=np.uint8)}


def _fetched() -> tuple[Program, dict[str, Array]]:
    """Fetch features with a pixel of padding, which programs only do for a matrix unit that fetches its own
    features."""
    stream = Stream()
    pixels, padding = (0, 0, 8, 1), (0, 0, 1, 0)
    loaded = stream.dma(Fetch(0, pixels, region(2), pixels, (1, 1, 7, 8), 1, padding, ZERO4, 3))
    stream.dma(copy(region(3), 0, 64), loaded)
    return stream.program([64], [64]), {"x0": np.arange(64, dtype=np.uint8)}


def _expanded(cores: int) -> tuple[Program, dict[str, Array]]:
    """Expand weight streams for each core of a mask, which compiled programs do not do on one core, then once more for
    one core."""
    stream, constants, made, sent = Stream(), b"", 0, []
    for bits in SYMBOL_BITS:
        data = np.frombuffer(weights(random.Random(bits), 1200), np.uint8)
        packed = _core.compress(data, bits)
        place = region(CONSTANTS, len(constants))
        whole = MulticastExpand(made, place, data.size, packed.size, bits, (1 << cores) - 1)
        again = expand(made, place, data.size, packed.size, bits)
        sent.append(stream.dma(again, stream.dma(whole), core=cores - 1))
        constants += packed.tobytes()
        made += data.size
    stream.dma(copy(region(FIRST_IO), 0, made), *sent, core=cores - 1)
    return stream.program([], [made], constants=constants), {}


def _sample(program: Program, number: int, feeds: dict[str, Array]) -> Sample:
    program.config_name, program.config_fingerprint = CONFIGS[number].name, CONFIGS[number].fingerprint()
    constants = program.constants.joined().tobytes()
    return Sample(program, number, json.dumps(describe(program)), tuple(decode(program.code)), constants, feeds)


@lru_cache(1)
def samples() -> tuple[Sample, ...]:
    made = []
    for number, config in enumerate(CONFIGS):
        for graph, feeds in _graphs():
            made.append(_sample(compile_graph(graph, config, "key"), number, feeds))
        handed = [_handed()] if config.cores > 1 else []
        kept = keeper(bytes(range(64))), {}
        for program, feeds in (_filled(), _sent(config.cores), _fetched(), _expanded(config.cores), kept, *handed):
            made.append(_sample(program, number, feeds))
    return tuple(made)
