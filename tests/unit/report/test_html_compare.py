"""The page of two runs, made only from the output of ``npusim compare --json``."""

from __future__ import annotations

import json

from npusim.explore.compare import compare
from npusim.report.html import compare_page
from tests.support.pages import compared, demo_run


def test_the_page_holds_the_comparison() -> None:
    text = compare_page(compared(), notes=[("changed", "dram.bandwidth")])
    told = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert told["delta"] == sum(told["layers"]["second"]) - sum(told["layers"]["first"])
    for share in told["shares"]:
        assert sum(share["values"]) == told["delta"]
    assert [sum(part[2] for part in parts) for parts in told["layers"]["parts"]] == [
        second - first for first, second in zip(told["layers"]["first"], told["layers"]["second"], strict=True)
    ]
    assert "<dd>dram.bandwidth</dd>" in text
    assert text == compare_page(compared(), notes=[("changed", "dram.bandwidth")])


def test_it_takes_what_compare_makes() -> None:
    run = demo_run().to_json_dict()
    text = compare_page(compare(run, run, ("one", "two")).to_json_dict())
    assert "<title>one and two</title>" in text
