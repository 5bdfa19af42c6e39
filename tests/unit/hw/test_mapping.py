"""Which keys may differ between a device and the one a program was compiled for: tested for every key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from npusim.errors import ConfigError, UsageError
from npusim.hw.build import walk
from npusim.hw.config import Config, load_config
from npusim.hw.dram_parts import PARTS
from npusim.hw.keys import Choice, Count, Flag, Key, MapOf, Quantity, Ratio, unused
from npusim.hw.mapping import changes, may_differ
from npusim.runtime import Session
from npusim.timing.tile import acc_bytes
from tests.support.graphs.samples import residual_net

EDGE = load_config("edge")


def others(entry: Key, value: Any) -> Iterator[Any]:
    """Yield other values for a key, likely ones first."""
    match entry.kind:
        case Flag():
            yield not value
        case Choice():
            yield from (option for option in entry.kind.options() if option != value)
        case MapOf():
            yield {name: 2 * number if isinstance(number, int) else str(number / 2) for name, number in value.items()}
        case Ratio():
            yield str(value / 2)
        case Count() | Quantity():
            yield from (2 * (value or 1), (value or 2) // 2, (value or 0) + 1, 10**9, 10**12)
        case _:
            yield "other"


def variants() -> Iterator[tuple[str, Key, Config]]:
    """Yield a device for each key that differs from ``edge`` in it."""
    for path, entry, value in walk(EDGE):
        for other in others(entry, value):
            try:
                found = EDGE.with_(**{path: other})
            except ConfigError:
                continue
            if found.fingerprint() != EDGE.fingerprint():
                yield path, entry, found
                break


VARIANTS = list(variants())


def limits(config: Config) -> tuple[object, ...]:
    """Return what the verifier and the compiler rely on."""
    matrix = config.matrix
    assert matrix is not None
    return (
        config.sram.bytes, acc_bytes(config), config.cores, config.dma.channels, config.units, config.dram.bytes,
        config.interconnect.multicast, matrix.weight_bits, matrix.weight_scales, config.queue_depth, matrix.rows,
        matrix.cols, {dtype for dtype, rate in matrix.throughput.items() if rate},
    )  # fmt: skip


def test_every_key_is_looked_at() -> None:
    """Except text, values that are only valid with those of other keys, and keys of another kind of DRAM."""
    tried = {path for path, _, _ in VARIANTS}
    left = {path for path, _, _ in walk(EDGE)} - tried - {f"dram.{entry.name}" for _, entry, _ in unused(EDGE.dram)}
    assert left <= {"name", "description", "dram.kind", "dram.part", "dram.mapping", "dma.separate_weight_port",
                    "technology.voltage", "technology.dram_pins"}  # fmt: skip
    assert {may_differ(path, entry) for path, entry, _ in VARIANTS} == {True, False}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(EDGE, cache_dir=False) as found:
        yield found


GRAPH = residual_net()
X = {"x": np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)}


@pytest.mark.parametrize(("path", "entry", "config"), VARIANTS, ids=[path for path, _, _ in VARIANTS])
def test_a_key_that_may_differ_changes_no_limit_and_no_output(
    session: Session, path: str, entry: Key, config: Config
) -> None:
    if not may_differ(path, entry):
        with pytest.raises(UsageError, match=f"a program for 'edge' cannot run as it is on 'edge': {path} must be"):
            session.run(GRAPH, X, on=config)
        return
    assert limits(config) == limits(EDGE)
    assert list(changes(EDGE, config)) == [path]
    here, there = session.run(GRAPH, X), session.run(GRAPH, X, on=config)
    for name, array in here.outputs.items():
        np.testing.assert_array_equal(there.outputs[name], array)
    assert (there.device, there.made_for, list(there.made_elsewhere)) == (config, EDGE, [path])


def test_another_kind_of_dram_costs_something_else_alone(session: Session) -> None:
    keys: dict[str, Any] = {"kind": "jedec", "part": "LPDDR4_4266", "channels": 2, "efficiency": "1"}
    keys["bandwidth"] = 2 * PARTS["LPDDR4_4266"].bandwidth
    jedec = EDGE.with_(**{f"dram.{name}": value for name, value in keys.items()})
    there = session.run(GRAPH, timing_only=True, on=jedec)
    assert there.time_ps != session.run(GRAPH, timing_only=True).time_ps


def test_a_type_that_is_not_computed_is_no_rate(session: Session) -> None:
    rates = {name: str(rate) for name, rate in EDGE.matrix.throughput.items()} if EDGE.matrix else {}
    with pytest.raises(UsageError, match=r"matrix\.throughput must be .*, got "):
        changes(EDGE, EDGE.with_(**{"matrix.throughput": {**rates, "float32": 0}}))
    changes(EDGE, EDGE.with_(**{"matrix.throughput": {**rates, "float32": "1/16"}}))


def test_what_must_be_as_it_was_is_named_all_at_once() -> None:
    other = load_config("server")
    with pytest.raises(UsageError, match=r"^a program for 'edge' cannot run as it is on 'server': ") as caught:
        changes(EDGE, other)
    for key in ("cores", "queue_depth", "matrix.rows", "sram.bytes", "dma.channels"):
        assert f"{key} must be " in str(caught.value)
    assert "dram.bandwidth" not in str(caught.value)
    assert str(caught.value).endswith("compile it for that device")
