"""Exact cycles: a change that affects them must also change the record."""

from __future__ import annotations

import pytest

from tests.golden.regenerate import load
from tests.support.graphs.golden import CONFIGS, GRAPHS, record

RECORD = load()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_cycles_are_those_on_record(graph: str, config: str) -> None:
    wanted, got = RECORD[f"{graph} on {config}"], record(graph, config)
    changed = [
        f"  {name}: {wanted[name]} on record, now {value}" for name, value in got.items() if wanted[name] != value
    ]
    if changed:
        lines = "\n".join([f"{graph} on {config}:", *changed])
        pytest.fail(f"{lines}\nif this is meant: python -m tests.golden.regenerate", pytrace=False)


def test_the_record_has_no_other_rows() -> None:
    assert set(RECORD) == {f"{graph} on {config}" for graph in GRAPHS for config in CONFIGS}
