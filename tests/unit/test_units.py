"""Quantities: exact or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import UsageError
from npusim.units import (
    PS_PER_S,
    Dimension,
    bytes_to_ps,
    ceil_div,
    cycles_spanned,
    cycles_to_ps,
    parse,
    ps_to_cycles,
    show,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 ns", Dimension.TIME, 80_000),
        ("0.5ns", Dimension.TIME, 500),
        ("1 s", Dimension.TIME, 10**12),
        ("64 KiB", Dimension.SIZE, 65_536),
        ("1.5 MiB", Dimension.SIZE, 1_572_864),
        ("64 kB", Dimension.SIZE, 64_000),
        ("1_000 B", Dimension.SIZE, 1_000),
        ("1 GHz", Dimension.FREQUENCY, 10**9),
        ("933.333 MHz", Dimension.FREQUENCY, 933_333_000),
        ("25.6 GB/s", Dimension.BANDWIDTH, 25_600_000_000),
        ("1 GiB/s", Dimension.BANDWIDTH, 2**30),
        ("0.2 pJ", Dimension.ENERGY, 200),
        ("50 mW", Dimension.POWER, 50_000),
        ("  7 us ", Dimension.TIME, 7_000_000),
        ("1000000000000000 ps", Dimension.TIME, 10**15),
    ],
)
def test_text_becomes_base_units(text, dimension, value):
    assert parse(text, dimension) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "80",
        "ns",
        "80 NS",
        "80 GHz",
        "-1 ns",
        "1e3 ns",
        "1,5 ns",
        "1 ns 2",
        "nan ns",
        "١ ns",
        "1 n",
        ".5 ns",
        "5. ns",
    ],
)
def test_another_text_is_refused_by_name(text):
    with pytest.raises(UsageError) as caught:
        parse(text, Dimension.TIME)
    assert str(caught.value) == f"must be a time such as '80 ns' (units: ps, ns, us, ms, s), got {text!r}"


@pytest.mark.parametrize(
    ("text", "dimension", "base"),
    [("0.0005 ns", Dimension.TIME, "ps"), ("0.3 KiB", Dimension.SIZE, "B"), ("0.1 Hz", Dimension.FREQUENCY, "Hz")],
)
def test_a_fraction_of_the_base_unit_is_refused_not_rounded(text, dimension, base):
    with pytest.raises(UsageError) as caught:
        parse(text, dimension)
    assert str(caught.value) == f"must be a whole number of {base}, got {text!r}"


@given(st.integers(0, 10**18), st.sampled_from(list(Dimension)))
def test_what_is_shown_reads_back_exactly(value, dimension):
    text = show(value, dimension)
    number, _, unit = text.partition(" ")
    assert number
    assert unit in dimension.suffixes
    assert parse(text, dimension) == value


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (0, Dimension.TIME, "0 ps"),
        (80_000, Dimension.TIME, "80 ns"),
        (1_500, Dimension.TIME, "1.5 ns"),
        (65_536, Dimension.SIZE, "64 KiB"),
        (1_000, Dimension.SIZE, "1000 B"),
        (17_064_000_000, Dimension.BANDWIDTH, "17.064 GB/s"),
        (1_000_000_001, Dimension.FREQUENCY, "1000000.001 kHz"),
    ],
)
def test_shown_in_the_largest_unit_that_is_exact(value, dimension, text):
    assert show(value, dimension) == text


@given(st.integers(0, 10**12), st.integers(1, PS_PER_S))
def test_cycles_and_time_are_inverse_and_round_up(cycles, hz):
    ps = cycles_to_ps(cycles, hz)
    assert ps_to_cycles(ps, hz) == cycles
    assert ps * hz >= cycles * PS_PER_S  # never early
    assert ps == 0 or (ps - 1) * hz < cycles * PS_PER_S  # never a picosecond late


@given(st.integers(0, 10**15), st.integers(1, PS_PER_S))
def test_a_cycle_that_has_begun_counts(ps, hz):
    cycles = cycles_spanned(ps, hz)
    assert (cycles - 1) * PS_PER_S < ps * hz <= cycles * PS_PER_S


def test_a_period_that_is_no_whole_picosecond_does_not_drift():
    assert cycles_to_ps(1, 700_000_000) == 1_429  # 1428.57 ps
    assert cycles_to_ps(7_000_000, 700_000_000) == 10**10  # rounded once, not seven million times


@given(st.integers(0, 10**15), st.integers(1, 10**15))
def test_division_rounds_up(dividend, divisor):
    quotient = ceil_div(dividend, divisor)
    assert (quotient - 1) * divisor < dividend <= quotient * divisor


def test_bytes_at_a_bandwidth():
    assert bytes_to_ps(64, 8 * 10**9) == 8_000
    assert bytes_to_ps(1, 3 * 10**9) == 334
