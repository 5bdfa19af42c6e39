"""Costs of a batch equal those of each element computed separately."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.hw.config import Config, load_config
from npusim.hw.cost import CostModel
from npusim.timing.batch import Column, evaluate, with_values
from npusim.timing.tile_costs import MatrixPrices, MovePrices
from npusim.work import VectorWork
from tests.support.devices import each_model
from tests.support.examples import examples

EXAMPLES = settings(max_examples=examples(8), deadline=None, derandomize=True)
COLUMNS = {
    ("clock_hz",): [10**9, 700_000_000], ("matrix", "rows"): [8, 16, 20], ("matrix", "cols"): [8, 32],
    ("sram", "banks"): [1, 16], ("sram", "latency_cycles"): [0, 3], ("dma", "burst_bytes"): [32, 64],
    ("dma", "max_outstanding"): [1, 64], ("dram", "bandwidth"): [10**9, 17 * 10**9], ("dram", "latency_ps"): [0, 9**5],
    ("interconnect", "latency_cycles"): [0, 8],
}  # fmt: skip


@pytest.mark.parametrize("name", each_model())
@EXAMPLES
@given(st.data(), st.integers(0, 999))
def test_batches_cost_what_their_elements_cost(name: str, data: st.DataObject, seed: int) -> None:
    config = load_config(name)
    assert config.matrix is not None
    sizes = np.random.default_rng(seed).integers(1, 300, (8, 6, 4)).astype(float)
    keys = data.draw(st.lists(st.sampled_from(list(COLUMNS)), max_size=4, unique=True))
    columns = {key: np.array([data.draw(st.sampled_from(COLUMNS[key])) for _ in range(4)], float) for key in keys}
    kind = (DType.INT8, 3, 3, data.draw(st.booleans()), 1, 4, 0)
    way = data.draw(st.sampled_from(["read", "write", "constants", "copy", "read4", "copy1"]))
    # Of four devices six works each.
    groups, oh, ow, oc, ic, nbytes, run, stride = sizes
    nbytes = 8 * nbytes

    def product(device: Config, *key: Any) -> Any:
        return MatrixPrices(device, *kind)[key]

    def move(device: Config, *key: Any) -> Any:
        return MovePrices(device)[(*key, way)]

    tile = (np.ones(1), oh, ow, groups * ic, groups) if kind[3] else (groups, oh, ow, oc, ic)
    for ask, fields in ((product, tile), (move, (nbytes, np.minimum(run, nbytes), stride))):
        found = evaluate(ask, config, columns, fields)
        for row in range(6):
            for place in range(4):
                device = with_values(config, {key: int(values[place]) for key, values in columns.items()})
                one = ask(device, *(int(np.broadcast_to(each, (6, 4))[row, place]) for each in fields))
                got = [np.broadcast_to(each, (6, 4))[row, place] for each in found]
                # Batches count in doubles: of 10^11 cycles one may be rounded the other way.
                assert got == pytest.approx(one if isinstance(one, tuple) else (one,), rel=1e-10, abs=2)


def test_a_ratio_may_differ() -> None:
    config, ratios = load_config("edge"), [0.5, 0.75, 1.0]
    columns: Mapping[tuple[str, ...], Any] = {("dram", "efficiency"): np.array(ratios)}
    found, *_ = evaluate(lambda device: MovePrices(device)[4096, 4096, 0, "read"], config, columns, ())
    for ratio, ps in zip(ratios, found, strict=True):
        one = with_values(config, {("dram", "efficiency"): Fraction(ratio)})
        assert ps == pytest.approx(MovePrices(one)[4096, 4096, 0, "read"][0], abs=1)


def test_errors_pass_and_leave_nothing_behind() -> None:
    config = with_values(load_config("edge"), {("vector",): None})
    work = VectorWork("simple", DType.INT8, 4, 1, 4)
    with pytest.raises(ProgramError, match="no vector unit"):
        evaluate(lambda device: CostModel(device).once(work).ps, config, {("clock_hz",): np.array([1e9, 2e9])}, ())


def test_values_of_a_batch_do_not_stay_in_memory() -> None:
    kept: list[Column] = []

    def ask(device: Config) -> Any:
        kept.append(device.dram.bandwidth)  # type: ignore[arg-type]
        return device.dram.bandwidth

    (found,) = evaluate(ask, load_config("edge"), {("dram", "bandwidth"): np.array([1e9, 2e9])}, ())
    assert list(found) == [1e9, 2e9]
    assert [len(column.values) for column in kept] == [0]


def test_a_batch_that_ends_leaves_those_of_other_threads_alone() -> None:
    """Only its own columns are cleared at the end."""
    config, clocks = load_config("edge"), {("clock_hz",): np.array([1e9, 2e9])}

    def asked(device: Config) -> Any:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(evaluate, lambda other: other.clock_hz * 1, config, clocks, ()).result()
        return device.clock_hz * 3

    (found,) = evaluate(asked, config, clocks, ())
    assert list(found) == [3e9, 6e9]
