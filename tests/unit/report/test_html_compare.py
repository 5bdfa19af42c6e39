"""The page of two runs, made only from the output of ``npusim compare --json``."""

from __future__ import annotations

import json

from npusim.explore.compare import compare
from npusim.report.html import compare_page
from tests.support.pages import compared, demo_run


def test_the_page_holds_the_comparison() -> None:
    text = compare_page(compared(), notes=[("changed", "sram.bytes")])
    told = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert told["delta"] == sum(told["layers"]["second"]) - sum(told["layers"]["first"])
    for share in told["shares"]:
        assert share["unit"] == "ps"
        assert sum(share["values"]) == told["delta"]
    assert [sum(part[2] for part in parts) for parts in told["layers"]["parts"]] == [
        second - first for first, second in zip(told["layers"]["first"], told["layers"]["second"], strict=True)
    ]
    assert "<dd>sram.bytes</dd>" in text
    assert text == compare_page(compared(), notes=[("changed", "sram.bytes")])


def test_the_headline_is_the_change_in_percent() -> None:
    def text(**amounts: object) -> str:
        return compare_page({**compared(), "amounts": amounts})

    assert '<dd class="figure">+25.0 %</dd><dd>16 us &#8594; 20 us</dd>' in text()
    moved = text(dram_read_bytes=[60, 90], dram_write_bytes=[40, 20])
    assert '<dd class="figure">+10.0 %</dd><dd>100 B &#8594; 110 B</dd>' in moved
    assert '<dt>energy</dt><dd class="figure">not known</dd>' in text(energy_fj=[5, None])
    assert '<dt>largest cause</dt><dd class="figure">dram</dd><dd>+9 us of +4 us</dd>' in text()


def test_it_takes_what_compare_makes() -> None:
    run = demo_run().to_json_dict()
    text = compare_page(compare(run, run, ("one", "two")).to_json_dict())
    assert "<title>one and two</title>" in text
