"""Cached prices are those of the device: keys left out of the cache key do not affect them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from operator import attrgetter
from typing import Any

import pytest

from npusim.compiler.pipeline import prepare
from npusim.dtypes import DType
from npusim.errors import NpusimError
from npusim.hw.config import Config, list_configs, load_config
from npusim.hw.cost import CostModel, cost_model
from npusim.hw.units import dma, vector
from npusim.timing import tile_costs
from npusim.timing.tile_costs import array_pricing, matrix_prices, move_prices, move_pricing, pricing, vector_pricing
from npusim.work import DmaWork, MatrixWork, VectorWork
from tests.support.graphs.golden import GRAPHS

CONFIGS = [config for config in map(load_config, list_configs()) if config.matrix is not None]
SHAPES = [(1, 7, 7, 64, 96), (2, 1, 33, 16, 8), (1, 56, 56, 24, 3)]
MOVES = [(4096, 4096), (1000, 40), (96, 1)]


def others(config: Config) -> list[Config]:
    """Return the device with every key changed that designs may vary without changing the cost of a tile."""
    assert config.matrix is not None
    sized = config.matrix.model == "direct"
    sram = config.sram.bytes if sized else 2 * config.sram.bytes
    return [
        dataclasses.replace(
            config, queue_depth=config.queue_depth + 1, description="another",
            sram=dataclasses.replace(config.sram, bytes=sram),
            compiler=dataclasses.replace(config.compiler, layer_cycles=5, resident_weights=True, fuses="none"),
            dram=dataclasses.replace(config.dram, bytes=2 * config.dram.bytes),
            dma=dataclasses.replace(config.dma, channels=config.dma.channels + 2),
        )
    ]  # fmt: skip


def kinds(config: Config) -> list[DType]:
    assert config.matrix is not None
    return [dtype for dtype in (DType.INT8, DType.FLOAT32, DType.BFLOAT16) if config.matrix.rate(dtype.label)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_product_costs_what_the_device_charges(config: Config) -> None:
    """Also if the price was cached for another device with a different DRAM."""
    faster = dataclasses.replace(config, dram=dataclasses.replace(config.dram, bandwidth=7 * config.dram.bandwidth))
    for each in (config, faster, *others(config)):
        for dtype in kinds(each):
            prices = matrix_prices(each, dtype, 3, 3, False, 1, 4, 0)
            for shape in SHAPES:
                work = MatrixWork(dtype, *shape, 3, 3, False, True, True, 1, 4, 0)
                assert prices[shape] == cost_model(each).product_ps(work)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_transfer_costs_what_the_device_charges(config: Config) -> None:
    for each in (config, *others(config)):
        prices, model = move_prices(each), cost_model(each)
        for nbytes, run in MOVES:
            runs = -(-nbytes // run)
            for way, moved in (("read", (nbytes, 0)), ("write", (0, nbytes)), ("copy", (0, 0))):
                work = DmaWork(nbytes, runs, run, *moved)
                assert prices[nbytes, run, 0, way] == charged(model, work)
                assert prices[nbytes, run, run + 9, way] == charged(model, dataclasses.replace(work, stride=run + 9))
            work = DmaWork(nbytes, runs, run, nbytes, 0, constants=True)
            assert prices[nbytes, run, 0, "constants"] == charged(model, work)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_as_many_prices_are_kept_as_may_be_and_no_more(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A cached price is not computed again; memory does not grow with the number of designs."""
    monkeypatch.setattr(tile_costs, "_MOST", most)
    edge = load_config("edge")
    products, moves = tile_costs.MatrixPrices(edge, DType.INT8, 3, 3, False, 1, 4, 0), tile_costs.MovePrices(edge)
    for number in range(3 * most + 2):
        assert products[1, 7, 7, 8, number + 1] > 0
        assert moves[4096, number + 1, 0, "read"] > (0, 0, 0)
        assert len(products) == len(moves) == number % most + 1


def charged(model: CostModel, work: DmaWork) -> tuple[int, int, int]:
    return model.cost(work).ps, model.stream_ps(work), model.dram_bytes(work)


class Reads:
    """Stands for a description or a part of it, and records the dotted keys that are read."""

    def __init__(self, of: Any, path: str, seen: set[str]) -> None:
        self._of, self._path, self._seen = of, path, seen

    def __getattr__(self, name: str) -> Any:
        kind = type(self._of)
        inherited = getattr(kind, name, None)
        if isinstance(inherited, property):
            assert inherited.fget is not None
            return inherited.fget(self)
        if callable(inherited):
            return inherited.__get__(self)
        value, path = getattr(self._of, name), f"{self._path}{name}"
        if dataclasses.is_dataclass(value):
            return Reads(value, f"{path}.", self._seen)
        self._seen.add(path)
        return value


def kept(config: Config, left: Config, seen: set[str]) -> list[str]:
    """Return the keys that were read and that differ in the reduced description ``left``."""
    return [path for path in sorted(seen) if attrgetter(path)(config) != attrgetter(path)(left)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_what_an_array_reads_is_there(config: Config) -> None:
    """Every cost model of the matrix unit is observed: if it read a key that prices leave out, it would get another
    device's value."""
    seen: set[str] = set()
    module = importlib.import_module(f"npusim.hw.units.matrix_{config.matrix.model if config.matrix else ''}")
    for dtype in kinds(config):
        for batch, oh, ow, oc, ic in SHAPES:
            module.cost(Reads(config, "", seen), MatrixWork(dtype, batch, oh, ow, oc, ic, 3, 3, False, True, True, 1))
            module.cost(Reads(config, "", seen), MatrixWork(dtype, 1, oh, ow, ic, ic, 3, 3, True, True, True, 1))
    assert {"matrix.rows", "clock_hz"} <= seen
    assert kept(config, array_pricing(config), seen) == []


@pytest.mark.parametrize("config", [config for config in CONFIGS if not config.constants], ids=lambda each: each.name)
def test_what_a_transfer_reads_is_there(config: Config) -> None:
    seen: set[str] = set()
    for nbytes, run in MOVES:
        for reads, writes in ((nbytes, 0), (0, nbytes), (0, 0)):
            work = DmaWork(nbytes, -(-nbytes // run), run, reads, writes)
            dma.cost(Reads(config, "", seen), work)  # type: ignore[arg-type]
    assert {"dram.bandwidth", "dma.setup_cycles"} <= seen
    assert kept(config, move_pricing(config), seen) == []


@pytest.mark.parametrize("config", [config for config in CONFIGS if config.vector], ids=lambda each: each.name)
def test_what_a_vector_unit_reads_is_there(config: Config) -> None:
    seen: set[str] = set()
    for function in config.vector.cost if config.vector else ():
        vector.cost(Reads(config, "", seen), VectorWork(function, DType.INT8, 1000, 2, 3000))  # type: ignore[arg-type]
    assert {"vector.lanes", "clock_hz"} <= seen
    assert kept(config, vector_pricing(config), seen) == []


def test_devices_whose_prices_are_equal_have_one_description_of_them() -> None:
    """So caches find it without comparing it key by key."""
    edge, channels = load_config("edge"), load_config("edge").with_(**{"dma.channels": 4, "sram.bytes": "2 MiB"})
    array = edge.with_(**{"matrix.rows": 8})
    assert pricing(edge) is pricing(channels)
    assert pricing(edge) is not pricing(array)
    assert move_pricing(edge) is move_pricing(array)
    assert vector_pricing(edge) is vector_pricing(array.with_(**{"dram.bandwidth": "4 GB/s"}))


@pytest.mark.parametrize("name", ["edge", "server", "tiny", "ethos_u55_128"])
def test_what_rewriting_reads_is_known(name: str) -> None:
    """If designs differ in a key that rewriting reads, one would get the graph of another."""
    config = load_config(name)
    seen: set[str] = set()
    for make in GRAPHS.values():
        graph, own = make(), set[str]()
        with contextlib.suppress(NpusimError):
            prepare(graph, Reads(config, "", own))  # type: ignore[arg-type]
        # Graphs that look for the largest elements are rewritten for each size of SRAM.
        seen |= own - {"sram.bytes"} if any(op.kind == "topk" for op in graph.ops) else own
    units = {"vector", "scalar"}  # whether they are there
    known = {
        "name", "matrix.throughput", "matrix.weight_bits", "matrix.weight_scales", "host.compile_bytes", "dram.bytes",
        "vector.cost",
    }  # fmt: skip
    assert "dram.bytes" in seen
    assert seen - units <= known


def test_a_key_that_is_left_out_would_show() -> None:
    edge = load_config("edge")
    assert kept(edge, array_pricing(edge), {"dram.bandwidth", "matrix.rows"}) == ["dram.bandwidth"]
