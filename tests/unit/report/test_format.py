"""Numbers and tables for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.report import format as fmt


@pytest.mark.parametrize(
    ("ps", "text"),
    [
        (0, "0 s"),
        (1, "1 ps"),
        (999, "999 ps"),
        (1_000, "1 ns"),
        (1_234, "1.23 ns"),
        (12_345_678, "12.3 us"),
        (2 * 10**12, "2 s"),
        (987_654_321_000, "988 ms"),
    ],
)
def test_durations(ps: int, text: str) -> None:
    assert fmt.duration(ps) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (9_437_184, "9.44 MB"), (25.6e9, "25.6 GB")]
)
def test_quantities(value: float, text: str) -> None:
    assert fmt.quantity(value, "B") == text


def test_capacities_are_binary_only_when_exact() -> None:
    assert fmt.capacity(1 << 20) == "1 MiB"
    assert fmt.capacity(192 << 10) == "192 KiB"
    assert fmt.capacity((1 << 20) + 1) == "1.05 MB"
    assert fmt.capacity(100) == "100 B"


def test_shares() -> None:
    assert fmt.percent(1, 3) == "33.3 %"
    assert fmt.percent(1, 0) == "-"


def test_groups_of_digits() -> None:
    assert fmt.grouped(12345678) == "12 345 678"


def test_a_table_is_aligned() -> None:
    lines = fmt.table(("name", "n"), [("a", "1"), ("long name", "100")], right="<>")
    assert lines == ["name         n", "a            1", "long name  100"]


def test_a_table_refuses_a_row_of_another_length() -> None:
    with pytest.raises(ValueError, match="a table of 2 columns got a row of 1"):
        fmt.table(("a", "b"), [("1",)])


@given(st.text(max_size=60), st.integers(5, 40))
def test_shortened_text_keeps_both_ends(text: str, width: int) -> None:
    short = fmt.shorten(text, width)
    assert len(short) == min(len(text), width)
    assert short[0:1] == text[0:1]
    assert short[-1:] == text[-1:]
