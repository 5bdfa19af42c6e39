"""The cost of a formula is bounded before it is computed: no accepted formula exceeds its limits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from npusim.explore.figures import FIGURES
from npusim.explore.formula import (
    DEEPEST,
    MOST_BITS,
    MOST_WHOLE,
    FormulaError,
    FormulaScope,
    Name,
    condition,
    formula,
)

SCOPE = FormulaScope({"rows": Name(), "ratio": Name()}, FIGURES, ("m",))
LARGEST = {
    **dict.fromkeys(FIGURES, (1 << 64) - 1),
    **{f"{figure}(m)": (1 << 64) - 1 for figure in FIGURES},
    "rows": (1 << 64) - 1,
    "ratio": Fraction((1 << 60) + 1, (1 << 20) - 1),
}
SMALLEST = {name: Fraction(1, (1 << 20) - 1) if name == "ratio" else 1 for name in LARGEST}
ZERO = dict.fromkeys(LARGEST, 0)
FLOATS = {name: float(value) for name, value in LARGEST.items()}

PLAIN = st.recursive(
    st.sampled_from(
        ["rows", "ratio", "cycles", "cycles('m')", "2", "1e300", "0.001", "9" * 300, "1 GiB / 1 B", "latency / 1 ps"]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, st.integers(0, 8)).map(lambda p: f"({p[0]})**{p[1]}"),
        inner.map(lambda p: f"-{p}"),
        inner.map(lambda p: f"ceil({p})"),
        st.lists(inner, min_size=1, max_size=3).map(lambda p: f"max({', '.join(p)})"),
    ),
    max_leaves=12,
)


def accepted(make, text):
    try:
        return make(text, SCOPE)
    except FormulaError:
        assume(False)
        raise


@given(PLAIN)
def test_an_accepted_formula_stays_within_its_bounds(text):
    made = accepted(formula, text)
    whole, parts = made.size
    assert whole <= MOST_WHOLE
    assert whole + parts <= MOST_BITS
    for values in (LARGEST, SMALLEST, ZERO, FLOATS):
        try:
            found = made(values)
        except ZeroDivisionError:
            continue
        assert math.isfinite(float(found))
        if isinstance(found, Fraction):
            assert abs(found) < 2**whole
            assert found.denominator <= 2**parts


@given(PLAIN)
def test_arrays_give_what_single_designs_do_or_no_number(text):
    made = accepted(formula, text)
    rows = (LARGEST, SMALLEST, ZERO)
    with np.errstate(all="ignore"):
        found = np.broadcast_to(np.asarray(made({n: np.array([float(r[n]) for r in rows]) for n in LARGEST}), float), 3)
    for values, rough in zip(rows, found, strict=True):
        try:
            exact = float(made({name: float(value) for name, value in values.items()}))
        except ZeroDivisionError:
            assert not math.isfinite(rough) or "max" in text or "**0" in text
            continue
        assert rough == pytest.approx(exact, rel=1e-9)


@given(PLAIN, st.sampled_from(["<", "<=", "==", ">"]), PLAIN)
def test_so_does_a_condition(left, sign, right):
    made = accepted(condition, f"{left} {sign} {right}")
    for values in (LARGEST, SMALLEST, ZERO, FLOATS):
        try:
            assert isinstance(made(values), float)
        except ZeroDivisionError:
            continue


@pytest.mark.parametrize(
    "text",
    [
        "2**8" + "**8" * 3,
        "((rows**8)**8)",
        "9" * 400,
        "1e308",
        "latency / 1 s * 1e290 * 1e290",
        "1 / (ratio**8)**8",
        "*".join(["rows"] * 20),
    ],
)
def test_what_may_become_too_large_is_refused_unseen(text):
    with pytest.raises(FormulaError, match=r"may become too large|must have a whole number"):
        formula(text, SCOPE)


@pytest.mark.parametrize(
    "text",
    [
        "+".join(["latency"] * 60),
        "(latency / 10 ms)**2 + (energy / 3.7 mJ)**2 + (area / 2.5 mm2)**2",
        "+".join(["latency / 3.3 ms"] * 20),
        "energy**2 * latency**2 * area",
        "(" * DEEPEST + "rows" + ")" * DEEPEST,
        "+".join("1" * 150),
    ],
)
def test_what_people_write_is_not(text):
    assert formula(text, SCOPE)(LARGEST) > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(" * (DEEPEST + 1) + "rows" + ")" * (DEEPEST + 1), f"at most {DEEPEST} nested brackets"),
        ("-" * 900 + "1", "nested too deeply"),
        ("not " * 200 + "1", "must not have"),
        ("lambda: rows", "must not have"),
        ("rows if rows else '\\d'", "must not have"),
        ("rows\0", "is not a formula"),
        ("f'{rows}'", "must not have"),
        ("1j", "must not have"),
        ("...", "must not have"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_formula_is_refused_in_words(text, said):
    with pytest.raises(FormulaError, match=said):
        formula(text, SCOPE)
