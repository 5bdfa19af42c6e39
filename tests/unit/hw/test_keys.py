"""Values of keys: which are accepted and refused on both sides of each limit, and the conversion to text and back."""

from __future__ import annotations

import pickle
import tomllib
from fractions import Fraction
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.hw.config import Config, list_configs, load_config
from npusim.hw.keys import (
    Choice,
    Count,
    Flag,
    FrozenTable,
    Key,
    MapOf,
    Quantity,
    Ratio,
    Section,
    Text,
    ValueType,
    entries,
    unknown,
)
from npusim.units import Dimension

REFUSED = object()


def read(kind: ValueType, value: object, bare: bool = False) -> Any:
    """Return the value, or REFUSED and the only problem, with the name below the key if it has one."""
    problems: list[tuple[str, str]] = []
    found = kind.read(value, lambda name, problem: problems.append((name, problem)), bare)
    if problems:
        assert found is None or isinstance(kind, MapOf)
        ((name, problem),) = problems
        return REFUSED, f"{name}: {problem}" if name else problem
    return found


def kinds(cls: type[Any] = Config) -> list[ValueType]:
    """Return every value type of every key."""
    found: list[ValueType] = []
    for _, entry in entries(cls):
        found += kinds(entry.cls) if isinstance(entry, Section) else [entry.kind]
    return list(dict.fromkeys(found))


@given(st.integers(0, 200), st.integers(0, 200), st.integers(-5, 205), st.booleans())
def test_counts_end_at_their_limits(low: int, room: int, value: int, power: bool) -> None:
    kind = Count(low, low + room, power)
    if value < low:
        assert read(kind, value) == (REFUSED, f"must be >= {low}, got {value}")
    elif value > low + room:
        assert read(kind, value) == (REFUSED, f"must be <= {low + room}, got {value}")
    elif power and value.bit_count() > 1:
        assert read(kind, value) == (REFUSED, f"must be a power of two, got {value}")
    else:
        assert read(kind, value) == value
    accepted = read(kind, value) == value
    if value or not power:  # the schema lists powers; 0 is none, and no key that is one may be 0
        assert jsonschema.Draft202012Validator(kind.schema()).is_valid(value) == accepted


@pytest.mark.parametrize(
    ("value", "name"), [(True, "flag"), (1.0, "number"), ("1", "string"), ({}, "table"), ([1], "list")]
)
def test_a_count_is_a_whole_number(value: object, name: str) -> None:
    refused, problem = read(Count(), value)
    assert refused is REFUSED
    assert problem.startswith("must be a whole number, got ")
    assert problem.endswith(f"(a {name})")


@pytest.mark.parametrize("power", [False, True])
def test_sizes_end_at_their_limits(power: bool) -> None:
    kind = Quantity(Dimension.SIZE, 1 << 10, 1 << 20, power)
    for value in (1 << 10, 1 << 20, "1 KiB", "1 MiB", 1 << 15):
        assert read(kind, value) in (1 << 10, 1 << 20, 1 << 15)
    assert read(kind, (1 << 10) - 1) == (REFUSED, "must be >= 1 KiB, got 1023 B")
    assert read(kind, (1 << 20) + 1) == (REFUSED, "must be <= 1 MiB, got 1048577 B")
    assert read(kind, "3 KiB") == ((REFUSED, "must be a power of two, got 3 KiB") if power else 3 << 10)
    assert read(kind, True)[0] is REFUSED
    assert jsonschema.Draft202012Validator(kind.schema()).is_valid(1 << 20)
    assert not jsonschema.Draft202012Validator(kind.schema()).is_valid((1 << 20) + 1)


def test_only_a_size_has_no_unit_in_a_file() -> None:
    clock = Quantity(Dimension.FREQUENCY, 1, 10**12)
    assert read(clock, "1 GHz") == read(clock, 10**9, bare=True) == 10**9
    assert read(clock, 10**9) == (REFUSED, 'must be a frequency with its unit, such as "1 GHz", got 1000000000')
    assert read(clock, 10**12 + 1, bare=True)[0] is REFUSED


def test_flags_choices_and_text() -> None:
    assert (read(Flag(), True), read(Flag(), False)) == (True, False)
    for value in (0, 1, "true", None):
        assert read(Flag(), value)[0] is REFUSED
    for choice in (Choice(("a", "b")), Choice(lambda: ("a", "b"))):
        assert [read(choice, name) for name in "ab"] == ["a", "b"]
        assert read(choice, "c") == (REFUSED, "must be one of a, b, got 'c'")
        assert read(choice, 1)[0] is REFUSED
        assert choice.allowed() == "a, b"
        assert choice.schema() == {"enum": ["a", "b"]}
    assert read(Text(), "a line") == "a line"
    for text in ("two\nlines", "\x1b[0m", 5):
        assert read(Text(), text)[0] is REFUSED


@given(st.integers(0, 3000), st.integers(0, 40), st.booleans())
def test_ratios_end_at_their_limits(numerator: int, denominator: int, positive: bool) -> None:
    kind, text = Ratio(50, positive), f"{numerator}/{denominator}"
    if not denominator:
        assert read(kind, text)[1].startswith('must be a number or a fraction such as "1/2", got')
    elif not numerator and positive:
        assert read(kind, text) == (REFUSED, f"must be > 0, got {text}")
    elif numerator > 50 * denominator:
        assert read(kind, text) == (REFUSED, f"must be <= 50, got {text}")
    else:
        found = read(kind, text)
        assert found == Fraction(numerator, denominator)
        assert read(kind, kind.raw(found)) == found
        assert read(kind, tomllib.loads(f"x = {kind.text(found)}")["x"]) == found


def test_ratios_have_denominators_that_are_not_too_large() -> None:
    assert read(Ratio(), f"1/{1 << 20}") == Fraction(1, 1 << 20)
    assert read(Ratio(), f"1/{(1 << 20) + 1}") == (REFUSED, "must have a denominator <= 1048576, got 1/1048577")
    assert read(Ratio(), 0.5) == Fraction(1, 2)
    assert read(Ratio(), -1) == (REFUSED, "must be >= 0, got -1")
    for value in (True, None, "-1", "1e3", "1/2/3", " 1", "1.", float("nan"), float("inf")):
        assert read(Ratio(), value)[0] is REFUSED


def test_tables_of_values() -> None:
    kind = MapOf(("a", "b", "c"), Count(1, 5), (("b", 2),))
    assert list(read(kind, {"c": 3, "a": 1}).items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert read(kind, {"b": 5}) == {"b": 5}
    assert read(kind, {"a": 6}) == (REFUSED, "a: must be <= 5, got 6")
    assert read(kind, {"bb": 1}) == (REFUSED, "bb: unknown key (did you mean 'b'?); allowed: a, b, c")
    assert read(kind, 3) == (REFUSED, "must be a table of a, b, c, got 3")
    assert unknown("code_apart", ["separate_code_port"]) == "renamed to 'separate_code_port'"
    assert unknown("code_apart", ["a"]) == "unknown key; allowed: a"


def test_a_table_is_a_key_of_a_dictionary() -> None:
    one, other = FrozenTable({"a": 1, "b": 2}), FrozenTable({"b": 2, "a": 1})
    assert hash(one) == hash(other)
    assert one == other == pickle.loads(pickle.dumps(one))
    assert (list(one), len(one), FrozenTable()) == (["a", "b"], 2, {})


@pytest.mark.parametrize("name", list_configs())
def test_every_value_comes_back_from_toml_and_from_json(name: str) -> None:
    def check(part: Any) -> None:
        for field, entry in entries(type(part)):
            value = getattr(part, field)
            if isinstance(entry, Section):
                if value is not None:
                    check(value)
            elif value is not None:
                assert isinstance(entry, Key)
                kind = entry.kind
                assert read(kind, tomllib.loads(f"x = {kind.text(value)}")["x"]) == value
                assert read(kind, kind.raw(value), bare=True) == value
                assert jsonschema.Draft202012Validator(kind.schema()).is_valid(
                    tomllib.loads(f"x = {kind.text(value)}")["x"]
                )

    check(load_config(name))


@pytest.mark.parametrize("kind", [kind for kind in kinds() if isinstance(kind, Count | Quantity)], ids=str)
def test_the_limits_of_every_key_are_allowed_and_what_is_beyond_is_not(kind: Count | Quantity) -> None:
    def power_at(limit: int) -> int:
        return 1 << limit.bit_length() - 1 if kind.power_of_two and limit else limit

    for limit in (kind.minimum, power_at(kind.maximum)):
        assert read(kind, limit, bare=True) == limit
    assert read(kind, kind.minimum - 1, bare=True)[0] is REFUSED
    assert read(kind, kind.maximum + 1, bare=True)[0] is REFUSED
