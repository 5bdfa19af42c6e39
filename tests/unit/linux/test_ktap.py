"""Failed tests in a kernel's log: at any depth, with any indentation, and missing tests of a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.linux.ktap import Ktap

WORDS = ("# npu: pass:1 fail:0", "random: crng init done", "okay then", "not okay", "1..", "npu: ok, it works")
"""Lines that are not results."""


def failures(lines: list[str]) -> list[str]:
    found = Ktap()
    for line in lines:
        found.line(line.encode() + b"\n")
    found.end()
    return found.failures


@dataclass
class Node:
    """A test: its own result, its parts, whether they have a plan, and how many of them are missing in the log."""

    passes: bool = True
    parts: list[Node] = field(default_factory=list)
    planned: bool = True
    missing: int = 0
    directive: str = ""

    @property
    def good(self) -> bool:
        known = "TODO" in self.directive
        shown = self.parts[: len(self.parts) - self.missing]
        return (self.passes or known) and not (self.planned and self.missing) and all(part.good for part in shown)

    def lines(self, depth: int) -> list[str]:
        found = [" " * depth + "KTAP version 1"]
        found += [" " * depth + f"1..{len(self.parts)}"] * self.planned
        for number, part in enumerate(self.parts[: len(self.parts) - self.missing], 1):
            found += part.lines(depth + 4) if part.parts else []
            found.append(" " * depth + f"{'ok' if part.passes else 'not ok'} {number} - test{part.directive}")
        return found


def trees(depth: int) -> st.SearchStrategy[Node]:
    parts = st.lists(trees(depth - 1), max_size=3) if depth else st.just([])
    directive = st.sampled_from(("", "", "", " # SKIP no device", " # TODO later"))
    passes = st.sampled_from((True, True, True, True, False))
    nodes = st.builds(Node, passes, parts, st.booleans(), st.just(0), directive)

    def cut(node: Node, missing: int) -> Node:
        # One of its parts is shown, or its level would have begun and have no results.
        node.missing = min(missing, max(len(node.parts) - 1, 0))
        return node

    return st.builds(cut, nodes, st.sampled_from((0, 0, 0, 1, 2)))


@given(
    trees(3).filter(lambda node: bool(node.parts)),
    st.sampled_from(("", "[    0.123456] ", "<6>[1.0][    T1] ")),
    st.data(),
)
def test_a_log_fails_exactly_if_a_test_fails_or_is_missing(root: Node, stamp: str, data: st.DataObject) -> None:
    root.passes, root.directive = True, ""
    lines = [stamp + line for line in root.lines(0)]
    for word in data.draw(st.lists(st.sampled_from(WORDS), max_size=4)):
        lines.insert(data.draw(st.integers(0, len(lines))), stamp + word)
    assert bool(failures(lines)) != root.good, "\n".join(lines)


KUNIT = """
[    0.5] KTAP version 1
[    0.5] 1..2
[    0.5]     KTAP version 1
[    0.5]     # Subtest: npu_ring
[    0.5]     1..2
[    0.5]     # npu_ring: initializing suite
[    0.5]     ok 1 wraps
[    0.5]         KTAP version 1
[    0.5]         # Subtest: sizes
[    0.5]         ok 1 64
[    0.5]         ok 2 128
[    0.5]     # sizes: pass:2 fail:0 skip:0 total:2
[    0.5]     ok 2 sizes
[    0.5] # npu_ring: pass:2 fail:0 skip:0 total:2
[    0.5] ok 1 npu_ring
[    0.6]     # Subtest: old
[    0.6]     1..1
[    0.6]     ok 1 - x # SKIP
[    0.6] ok 2 - old # SKIP
TAP version 13
1..1
# selftests: npu: run.sh
ok 1 selftests: npu: run.sh
"""


def test_a_log_of_kunit_and_kselftest_passes() -> None:
    assert failures(KUNIT.splitlines()) == []


@pytest.mark.parametrize(
    "number", [n for n, line in enumerate(KUNIT.splitlines()) if " ok " in line or line[:3] == "ok "]
)
@pytest.mark.parametrize("kind", ["fails", "missing"])
def test_each_result_of_that_log_counts(number: int, kind: str) -> None:
    lines = KUNIT.splitlines()
    if kind == "fails":
        lines[number] = lines[number].replace("ok ", "not ok ", 1).replace(" # SKIP", "")
        assert failures(lines) == [lines[number].partition("] ")[2].strip() or lines[number]]
    elif not lines[number].endswith(("64", "128")):  # those of no plan
        del lines[number]
        assert failures(lines)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Bail out! no device"], "Bail out! no device"),
        (["not ok"], "not ok"),
        (["not ok 3 # TIMEOUT 45 seconds"], "not ok 3 # TIMEOUT 45 seconds"),
        (["1..2", "ok 1"], "a plan of 2 tests has 1 results"),
        (["1..2"], "a plan of 2 tests has 0 results"),
        (["1..1", "ok 1", "ok 2"], "a plan of 1 tests has 2 results"),
        (["1..2", "ok 1", "ok 1"], "ok 1: must be result 2 of 2"),
        (["KTAP version 1"], "a test has begun, but has no results"),
        (["KTAP version 1", "1..1", "    # Subtest: x", "ok 1 x"], "a test has begun, but has no results"),
    ],
)
def test_what_is_missing_or_given_up_is_named(lines: list[str], said: str) -> None:
    assert said in failures(lines)


def test_a_plan_of_none_and_one_behind_its_results() -> None:
    assert failures(["1..0 # SKIP no device"]) == []
    assert failures(["ok 1", "ok 2", "1..2"]) == []
    assert failures(["ok 1 # skip", "not ok 2 # todo later"]) == []


@given(st.binary(max_size=300))
def test_any_log_is_read_to_its_end(data: bytes) -> None:
    found = Ktap()
    for line in data.splitlines(keepends=True):
        found.line(line)
    found.end()
