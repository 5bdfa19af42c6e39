"""What a script may contain, and the errors for invalid ones."""

from __future__ import annotations

import json
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.npu import NpuDevice
from npusim.errors import ConfigError, UsageError
from npusim.faults import AtTime, Fault, Flip, Script, Slow, read_script, script_of
from npusim.faults.schema import SCHEMA, json_schema, render
from npusim.faults.script import lead
from npusim.faults.what import WHAT
from npusim.faults.when import WHEN
from npusim.hw.config import load_config
from npusim.hw.keys import Choice, Count, Flag, Key, Quantity, Ratio, Text, ValueType, entries

ROOT = Path(__file__).resolve().parents[3]
TINY = load_config("tiny")
GOOD_WHAT = 'what = { flip = "dram", address = 0, bit = 0 }'
GOOD_WHEN = 'when = { time = "1 ms" }'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "f.toml"
    path.write_text(text)
    return path


def test_a_script_in_toml(tmp_path: Path) -> None:
    found = read_script(
        written(
            tmp_path,
            '[[fault]]\nname = "x"\nwhen = { time = "1 ms" }\nwhat = { flip = "sram", address = 5, bit = 7 }\n'
            '[[fault]]\nwhen = { job = 2 }\nwhat = { slow = "core0.dma0", factor = "7/2", lasts = "3 us" }\n',
        )
    )
    assert found.faults[0] == Fault(AtTime(time_ps=10**9), Flip(flip="sram", address=5, bit=7), "x")
    assert found.faults[1].what == Slow(slow="core0.dma0", factor=Fraction(7, 2), lasts=3 * 10**6)
    assert script_of(found) is found
    assert script_of(found.to_table()).faults == found.faults
    assert script_of(list(found.faults)).faults == found.faults


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f.toml: fault: must be at least one table [[fault]], got None"),
        ("fault = 3", "f.toml: fault: must be at least one table [[fault]], got 3"),
        ("faults = []", "f.toml: faults: unknown key; allowed: tables [[fault]]"),
        (f"[[fault]]\n{GOOD_WHAT}", "f.toml: fault 1.when: must be a table with one of time, doorbell, seqno, job,"),
        (f"[[fault]]\n{GOOD_WHEN}", "f.toml: fault 1.what: must be a table with one of flip, hang, slow, fail,"),
        (f"[[fault]]\nwhen = {{}}\n{GOOD_WHAT}", "f.toml: fault 1.when: must have one of time, doorbell,"),
        (f'[[fault]]\nwhen = {{ time = "1 ms", job = 1 }}\n{GOOD_WHAT}', "interrupt, got time, job"),
        (f"[[fault]]\nwhen = {{ time = 5 }}\n{GOOD_WHAT}", "fault 1.when.time: must be a time with its unit"),
        (f'[[fault]]\nwhen = {{ job = 1, ring = "LOW" }}\n{GOOD_WHAT}', "fault 1.when.ring: unknown key"),
        (f"[[fault]]\nwhen = {{ job = 0 }}\n{GOOD_WHAT}", "fault 1.when.job: must be >= 1, got 0"),
        (f'[[fault]]\nwhen = {{ seqno = 1, stage = "end" }}\n{GOOD_WHAT}', "stage: must be one of begins, runs, ends"),
        (f"[[fault]]\nwhen = {{ command = 1 }}\n{GOOD_WHAT}", "fault 1.when.unit: missing; must be given"),
        (f'[[fault]]\n{GOOD_WHEN}\nwhat = {{ flip = "dram", address = 1, bit = 8 }}', "what.bit: must be <= 7, got 8"),
        (
            f'[[fault]]\n{GOOD_WHEN}\nwhat = {{ hang = "a", lasts = "long" }}',
            "must be 'job', 'reset', 'ever' or",
        ),
        (
            f'[[fault]]\n{GOOD_WHEN}\nwhat = {{ stuck = "ID", value = 1, lasts = "job" }}',
            "must be 'ever', 'reset'",
        ),
        (f"[[fault]]\n{GOOD_WHEN}\nwhat = {{ throttle = 0 }}", "what.throttle: must be > 0, got 0"),
        (f"[[fault]]\n{GOOD_WHEN}\nwhat = {{ unplug = false }}", "what.unplug: must be true, got False"),
        (
            f"[[fault]]\n{GOOD_WHEN}\n{GOOD_WHAT}\n[[fault]]\nwhy = 1\n{GOOD_WHEN}\n{GOOD_WHAT}",
            "2.why: unknown",
        ),
        (f"[[fault]]\nname = 3\n{GOOD_WHEN}\n{GOOD_WHAT}", "fault 1.name: must be one line of text, got 3"),
        ("[[fault", "f.toml: not valid TOML"),
    ],
)
def test_a_script_that_is_wrong_says_where_and_what_was_allowed(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_script(written(tmp_path, text))
    assert problem in str(caught.value)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_script(written(tmp_path, f"[[fault]]\nwhen = {{ job = 0 }}\n{GOOD_WHAT}\n[[fault]]\n{GOOD_WHEN}"))
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match="no such file"):
        read_script(tmp_path / "none.toml")
    for given_ in (3, b"x", {"when": 1}):
        with pytest.raises(ConfigError, match="faults: must be a file, a script or a list of faults, got"):
            script_of(given_)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("when", "what", "problem"),
    [
        ({"doorbell": 1, "ring": "MIDDLE"}, {}, "when.ring: must be one of LOW, MEDIUM, HIGH, got 'MIDDLE'"),
        ({"read": "STATSU"}, {}, "got 'STATSU' (did you mean 'STATUS'?)"),
        ({"read": "CONTROL"}, {}, "when.read: must be one of ID, VERSION"),
        ({"write": "ID"}, {}, "when.write: must be one of CONTROL"),
        (
            {"command": 1, "unit": "core0.dma1"},
            {},
            "when.unit: must be one of core0.matrix, core0.vector, core0",
        ),
        (
            {},
            {"hang": "core1.vector"},
            "must be one of core0.matrix, core0.vector, core0.scalar, core0.dma0, seq",
        ),
        ({}, {"slow": "sequencer", "factor": 2}, "what.slow: must be one of core0.matrix"),
        ({}, {"fail": "core0.vector"}, "what.fail: must be one of core0.dma0, got 'core0.vector'"),
        ({}, {"stuck": "STATUS", "field": "BUZY", "value": 1}, "what.field: must be one of READY, BUSY, FAULT"),
        ({}, {"stuck": "STATUS", "field": "BUSY", "value": 2}, "what.value: must be <= 0x1, got 0x2"),
        ({}, {"wrong": "ABORT", "invert": 1}, "what.wrong: must be one of ID"),
        ({}, {"lose_write": "HIGH_HEAD"}, "what.lose_write: must be one of CONTROL"),
        (
            {},
            {"flip": "dram", "address": 1 << 30, "bit": 0},
            "address: must be below 0x40000000, the bytes of the DRAM",
        ),
        (
            {},
            {"flip": "sram", "address": 0, "bit": 0, "core": 1},
            "core: must be below 1, the number of cores, got 1",
        ),
        ({}, {"ecc": "corrected", "memory": "accumulators", "address": 1 << 40}, "the bytes of the accumulators"),
    ],
)
def test_what_the_device_does_not_have_is_refused_when_it_is_made(when: Any, what: Any, problem: str) -> None:
    fault = {"when": when or {"job": 1}, "what": what or {"flip": "dram", "address": 0, "bit": 0}, "name": "it"}
    with pytest.raises(ConfigError) as caught:
        NpuDevice(TINY, [fault])
    assert str(caught.value).startswith("faults: fault 1 (it): ")
    assert problem in str(caught.value)
    device = NpuDevice(TINY)
    with pytest.raises(ConfigError):
        device.faults.add([{"when": {"job": 1}, "what": {"flip": "dram", "address": 0, "bit": 0}}, fault])
    assert not device.faults.active  # none of them
    device.faults.check()


def test_a_time_that_is_over_is_refused() -> None:
    device = NpuDevice(TINY)
    device.machine.clock.advance(1000)
    with pytest.raises(UsageError, match=r"fault 1: when.time: must not be before now, which is 1 ns"):
        device.faults.add([Fault(AtTime(time_ps=999), Flip(flip="dram", address=0, bit=0))])
    device.faults.add([Fault(AtTime(time_ps=1000), Flip(flip="dram", address=0, bit=0))])


def test_what_did_not_happen_is_told_with_its_reason() -> None:
    flip = {"flip": "dram", "address": 0, "bit": 0}
    device = NpuDevice(
        TINY,
        [
            {"when": {"time": 10**12}, "what": flip},
            {"when": {"doorbell": 3}, "what": flip, "name": "third"},
            {"when": {"label": "conv7"}, "what": flip},
            {"when": {"write": "LOW_DOORBELL"}, "what": {"fail": "core0.dma0"}},
        ],
    )
    device.faults.name_operators(0, [("conv1", "relu1"), ("conv2",)])
    for _ in range(2):
        device.bus.write(0, 0x114, 4, 1)
    with pytest.raises(UsageError) as caught:
        device.faults.check()
    now = "200 ns"
    assert str(caught.value).splitlines() == [
        "4 faults of the script did not happen:",
        f"faults: fault 1: when.time is 1 s, and it is {now} now",
        f"faults: fault 2 (third): when.doorbell: not reached by {now}; 2 such events were counted",
        "faults: fault 3: when.label: no operator is called 'conv7'; there are conv1, conv2, relu1",
        "faults: fault 4: what.fail was active from 100 ns, but nothing matched",
    ]


def test_the_schema_is_up_to_date_and_has_every_key() -> None:
    assert (ROOT / "docs/reference" / SCHEMA).read_text("utf-8") == render()
    fault = json_schema()["properties"]["fault"]["items"]["properties"]
    for name, classes in (("when", WHEN), ("what", WHAT)):
        assert [each["title"] for each in fault[name]["anyOf"]] == [lead(cls) for cls in classes]
        guide = (ROOT / "docs/guide/faults.md").read_text("utf-8")
        for cls in classes:
            assert f"`{lead(cls)}`" in guide
    assert len({lead(cls) for cls in WHEN}) == len(WHEN)
    assert len({lead(cls) for cls in WHAT}) == len(WHAT)


def test_the_schema_knows_what_the_reader_knows() -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator(json_schema())
    for text, right in (
        (f"[[fault]]\n{GOOD_WHEN}\n{GOOD_WHAT}", True),
        ('[[fault]]\nname = "x"\nwhen = { label = "a", edge = "ends" }\nwhat = { throttle = 2, lasts = "1 us" }', True),
        (f'[[fault]]\n{GOOD_WHEN}\nwhat = {{ hang = "a", lasts = "job" }}', True),
        (f'[[fault]]\n{GOOD_WHEN}\nwhat = {{ hang = "a", lasts = "long" }}', False),
        (f"[[fault]]\n{GOOD_WHEN}", False),
        (f"[[fault]]\nwhen = {{ job = 0 }}\n{GOOD_WHAT}", False),
        (f'[[fault]]\nwhen = {{ job = 1, ring = "LOW" }}\n{GOOD_WHAT}', False),
        ("fault = []", False),
    ):
        assert validator.is_valid(tomllib.loads(text)) == right, text


def value_of(kind: ValueType) -> st.SearchStrategy[Any]:
    match kind:
        case Flag():
            return st.just(True)
        case Choice():
            return st.sampled_from(kind.options())
        case Count():
            return st.integers(kind.minimum, kind.maximum)
        case Quantity():
            return st.integers(max(kind.minimum, 1), 10**15).map(lambda ps: f"{ps} ps")
        case Ratio():
            return st.builds(Fraction, st.integers(1, 999), st.integers(1, 999)).map(str)
        case Text():
            return st.text("abcdefgh.0123_", min_size=1, max_size=9)
        case _:
            return st.sampled_from(kind.words) | st.integers(1, 10**9).map(lambda ps: f"{ps} ps")  # type: ignore[attr-defined]


@st.composite
def tables(draw: st.DrawFn, classes: tuple[type[Any], ...]) -> dict[str, Any]:
    """Draw a table of one of the classes as TOML gives it."""
    keys = [entry for _, entry in entries(draw(st.sampled_from(classes))) if isinstance(entry, Key)]
    return {each.name: draw(value_of(each.kind)) for each in keys if each.required or draw(st.booleans())}


def toml_of(rows: list[dict[str, Any]]) -> str:
    """Return rows of plain values as TOML: JSON's strings, numbers and booleans are valid TOML."""

    def inline(table: dict[str, Any]) -> str:
        return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in table.items()) + " }"

    return "".join(f"[[fault]]\nwhen = {inline(row['when'])}\nwhat = {inline(row['what'])}\n" for row in rows)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.fixed_dictionaries({"when": tables(WHEN), "what": tables(WHAT)}), min_size=1, max_size=4))
def test_any_script_comes_back_from_its_table(rows: list[dict[str, Any]]) -> None:
    plain = tomllib.loads(toml_of(rows))["fault"]
    script = script_of(plain)
    assert len(script.faults) == len(rows)
    assert script_of(script.to_table()) == script
    assert isinstance(script, Script)
