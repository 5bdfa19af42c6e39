"""Numbers and tables for readers."""

import csv
import io

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
        (9_994, "9.99 ns"), (9_996, "10.0 ns"), (99_940, "99.9 ns"), (99_960, "100 ns"),
        (999_499, "999 ns"), (999_500, "1.00 us"), (999_499_999, "999 us"), (999_500_000_000, "1.00 s"),
        (-1_234, "-1.23 ns"), (-999_500, "-1.00 us"),
    ],
)  # fmt: skip
def test_durations(ps: int, text: str) -> None:
    assert fmt.duration(ps) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (0.004, "0.004 B"), (1.033e-6, "1.03e-06 B"), (0.25, "0.25 B"),
        (999, "999 B"), (999.4, "999 B"), (999.5, "1.00 kB"), (1_000, "1 kB"), (9_437_184, "9.44 MB"),
        (25.6e9, "25.6 GB"),
    ],
)  # fmt: skip
def test_quantities(value: float, text: str) -> None:
    assert fmt.quantity(value, "B") == text


def test_capacities_are_binary_only_when_exact() -> None:
    assert fmt.capacity(1 << 20) == "1 MiB"
    assert fmt.capacity(192 << 10) == "192 KiB"
    assert fmt.capacity((1 << 20) + 1) == "1.05 MB"
    assert fmt.capacity(100) == "100 B"


def test_shares() -> None:
    assert fmt.percent(1, 3) == "33.3 %"
    assert fmt.percent(-1, 3000) == "0.0 %"
    assert fmt.percent(-2, 3000) == "-0.1 %"
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


ROWS = [("conv1", "1 us", "45.5 %", "DMA busy 100.0 %, DRAM at 12 345 678 of its peak: 8 kB moved for 1 kMAC, no more")]
HEADER = ("layer", "time", "share", "why")


@pytest.mark.parametrize("width", [120, 80, 60, 50, 40, 20, 10])
def test_a_table_breaks_between_words(width: int) -> None:
    with fmt.lines_of(width):
        lines = fmt.table(HEADER, ROWS, right="<>><")
    words = " ".join(" ".join(lines).split())
    whole = " ".join(" ".join(cell for row in (HEADER, *ROWS) for cell in row).split())
    assert sorted(words.split()) == sorted(whole.split()), "no word is lost or cut"
    assert all("12 345 678" in line for line in lines if "345" in line), "nor a number"
    if width >= 40:
        assert max(map(len, lines)) <= width


def test_outside_of_a_terminal_a_row_is_a_line() -> None:
    assert len(fmt.table(HEADER, ROWS)) == 2
    with fmt.lines_of(60):
        assert len(fmt.table(HEADER, ROWS)) > 2
    assert len(fmt.table(HEADER, ROWS)) == 2


def test_the_lines_of_a_cell_stay_in_its_column() -> None:
    with fmt.lines_of(24):
        assert fmt.table(("a", "text"), [("one", "some words that are many"), ("two", "few")]) == [
            "a    text", "one  some words that are", "     many", "two  few",
        ]  # fmt: skip
    with fmt.lines_of(32):
        assert fmt.facts([("DRAM", "1 kB read, 2 kB written, and then 100 % of it")]) == [
            "  DRAM  1 kB read, 2 kB written,", "        and then 100 % of it",
        ]  # fmt: skip


def test_a_column_of_text_without_room_goes_below() -> None:
    with fmt.lines_of(40):
        lines = fmt.table(("name", "why"), [("x" * 30, "a sentence of a few words, too long for here")])
    assert lines == ["name", "    why", "x" * 30, "    a sentence of a few words, too long", "    for here"]


CELLS = st.tuples(
    st.text("ab/", min_size=1, max_size=60), st.integers(0, 10**6).map(str), st.sampled_from(("conv", "conv+relu+add")),
    st.lists(st.text("xyz", min_size=1, max_size=12), max_size=12).map(" ".join),
)  # fmt: skip


@given(st.lists(CELLS, min_size=1, max_size=5), st.integers(44, 160))
def test_no_line_of_a_table_is_longer_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    """Names are shortened if they must be; numbers and words of the last column never are."""
    with fmt.lines_of(width):
        lines = fmt.table(("name", "count", "kind", "why"), rows, right="<><<")
    assert max(map(len, lines)) <= width
    shown = " ".join(lines).split()
    for _, count, _, why in rows:
        assert {count, *why.split()} <= set(shown)


def test_a_pipe_has_whole_names() -> None:
    assert fmt.table(("name",), [("x" * 500,)]) == ["name", "x" * 500]


def test_columns_move_closer_before_one_goes_below() -> None:
    with fmt.lines_of(11):
        assert fmt.table(("a", "b", "c"), [("123", "456", "789")], right=">>>") == ["  a   b   c", "123 456 789"]


def test_lines_are_broken_between_words_and_indented() -> None:
    assert fmt.broken("short\n  a line of some words\n" + "y" * 30, 16) == (
        "short\n  a line of some\n      words\n" + "y" * 30
    )


@given(st.text(st.characters(codec=None), max_size=40))
def test_printable_text_is_printable_and_says_what_was_there(text: str) -> None:
    assert fmt.printable(text, lines=False).isprintable()
    assert fmt.printable(text).replace("\n", "").isprintable()
    assert fmt.printable("conv 1\x1b[2J") == r"conv 1\x1b[2J"
    if text.isprintable():
        assert fmt.printable(text) == text


def test_a_cell_of_two_lines_is_one() -> None:
    assert fmt.table(("a", "b"), [("x\ny", "\x1b[0m")]) == ["a     b", r"x\ny  \x1b[0m"]


@given(st.text(st.sampled_from("=+-@\t\r\n \x1b[2J\u202e,\"'a1(\uff1d") | st.characters(), max_size=8))
def test_no_cell_of_csv_is_a_formula_or_an_order(text: str) -> None:
    """Text that a spreadsheet or terminal would execute is made visible; everything else is unchanged."""
    written = fmt.csv_text(["name", text], [{"name": text, text: -1}, {}])
    (header, row, empty) = csv.reader(io.StringIO(written, newline=""))
    assert row[1] == "-1"  # a number stays one
    assert empty == ["", ""]
    for cell in (header[1], row[0]):
        assert cell.isprintable()
        assert cell.strip()[:1] not in tuple("=+-@\uff1d\uff0b\uff0d\uff20")
        if text.isprintable() and not cell.startswith("'"):
            assert cell == text


def test_a_formula_becomes_text() -> None:
    assert fmt.csv_text(["=a"], [{"=a": "=cmd|' /C calc'!A0"}]) == "'=a\n'=cmd|' /C calc'!A0\n"
    assert fmt.csv_text(["a"], [{"a": "\t=1"}, {"a": "-1 ps"}, {"a": "x = 1"}]) == "a\n'\\t=1\n'-1 ps\nx = 1\n"
