"""The manual's description of the sanitizer and of the suite is correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.conformance import suite
from npusim.device import findings

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize(
    ("file", "mark", "table"),
    [("driver-check.md", "kinds", findings.table), ("driver-test.md", "cases", suite.table)],
)
def test_the_tables_are_up_to_date(file: str, mark: str, table: object) -> None:
    assert callable(table)
    found = (REFERENCE / file).read_text().split(f"<!-- {mark} -->\n")[1].split("<!-- end -->")[0]
    assert found == table() + "\n", f"paste the output of python -m {getattr(table, '__module__', '')}"


def test_every_kind_says_what_it_means_and_how_to_mend_it() -> None:
    for name, kind in findings.KINDS.items():
        assert name.replace("-", "").islower()
        assert len(kind.meaning) > 20
        assert len(kind.fix) > 10
