"""onnx's node tests: none fails, cases that once passed still pass, and each node becomes the recorded operators."""

from __future__ import annotations

from collections import Counter

from tests.support.onnx_node_tests.cases import BOUND, Verdict, recorded
from tests.unit.frontends.standard_nodes import WANTS_CONSTANT, judged, on_record, operators

LEAST_PASSED = 1400
"""Number of cases that must pass; the suite of another onnx release may have a few fewer."""


def verdicts() -> list[Verdict]:
    return [each.verdict for each in judged()]


def test_no_case_fails() -> None:
    failed = [f"{v.case}: {v.reason}" for v in verdicts() if v.outcome == "failed"]
    assert not failed, "\n".join(failed)


def test_most_cases_pass() -> None:
    counts = Counter(verdict.outcome for verdict in verdicts())
    assert counts["passed"] >= LEAST_PASSED, counts


def test_what_passed_before_passes_still() -> None:
    """The record has the original cases; those that need constants passed with them."""
    now = {verdict.case: verdict for verdict in verdicts()}
    floor = {name.removesuffix(BOUND) for name in recorded()} & set(now)
    lost = [f"{name}: {now[name].reason}" for name in sorted(floor) if now[name].outcome != "passed"]
    assert not lost, "\n".join(lost)


def test_no_refusal_is_for_want_of_a_constant() -> None:
    assert not [v.case for v in verdicts() if v.outcome == "refused" and WANTS_CONSTANT in v.reason]


def test_nodes_become_the_operators_on_record() -> None:
    """Right results computed in another way - a scatter for a copy, a loop of ten for one - are a change, too."""
    now, before = operators(), on_record()
    new = [f"{name}: {kinds}" for name in sorted(now) for kinds in sorted(now[name] - before.get(name, set()))]
    assert not new, "\n".join([*new, "if this is meant: python -m tests.unit.frontends.standard_nodes"])
    # The suite of another onnx release may have other cases.
    assert sum(map(len, now.values())) * 20 >= sum(map(len, before.values())) * 19
