"""A decoder that serves many requests: the order of prompts and steps, memory for keys and values, small cases by
hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import UsageError
from npusim.explore.serving.decoder import DecoderResult, Limits, decode
from npusim.explore.serving.served import LatencySpread, classed


@dataclass(frozen=True)
class Program:
    """The part of a timed program that is read."""

    phase: str
    batch: int
    tokens: int
    total_ps: int


def prefill(length: int) -> Any:
    return Program("prefill", 1, length, 10 * length)


def step(batch: int, context: int) -> Any:
    return Program("decode", batch, context, 100 + context)


LIMITS = Limits((4, 8), (8, 16), (1, 2, 4), 100)


def told(found: DecoderResult) -> list[tuple[int, str, int, int]]:
    return [(begin, each.phase, each.batch, each.tokens) for begin, each in found.steps]  # type: ignore[attr-defined]


def test_one_request_is_a_prompt_and_a_step_for_each_further_token() -> None:
    found = decode([(5, 3, 3)], LIMITS, prefill, step)
    assert told(found) == [(5, "prefill", 1, 4), (45, "decode", 1, 8), (153, "decode", 1, 8)]
    (served,) = found.served
    assert (served.began_ps, served.ended_ps, served.token_ps) == (5, 261, (45, 153, 261))
    assert found.peak_tokens == 3 + 3 - 1


def test_who_comes_later_joins_and_who_is_done_leaves() -> None:
    found = decode([(0, 4, 3), (60, 8, 2), (60, 4, 1)], LIMITS, prefill, step)
    assert told(found) == [
        (0, "prefill", 1, 4),
        (40, "decode", 1, 8),  # one alone, until the others come
        (148, "prefill", 1, 8),
        (228, "prefill", 1, 4),  # done with its first token
        (268, "decode", 2, 8),  # the longest context of the two decides
    ]
    assert [(each.arrived_ps, each.ended_ps) for each in found.served] == [(60, 268), (0, 376), (60, 376)]


def test_memory_for_keys_and_values_keeps_requests_waiting() -> None:
    tight = Limits(LIMITS.lengths, LIMITS.contexts, LIMITS.batches, 6)
    found = decode([(0, 4, 3), (0, 4, 2)], tight, prefill, step)
    assert [name for _, name, *_ in told(found)] == ["prefill", "decode", "decode", "prefill", "decode"]
    assert found.peak_tokens == 6
    roomy = decode([(0, 4, 3), (0, 4, 2)], LIMITS, prefill, step)
    assert [name for _, name, *_ in told(roomy)] == ["prefill", "prefill", "decode", "decode"]


def test_the_batch_is_full() -> None:
    one = Limits(LIMITS.lengths, LIMITS.contexts, (1,), 100)
    found = decode([(0, 4, 2), (0, 4, 2)], one, prefill, step)
    assert [name for _, name, *_ in told(found)] == ["prefill", "decode"] * 2


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ((0, 9, 1), "a request has 9 tokens in its prompt, but the largest compiled size is 8"),
        ((0, 8, 11), "a request has 17 tokens before its last one, but the largest compiled size is 16"),
    ],
)
def test_what_no_program_is_large_enough_for(request_: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode([request_], LIMITS, prefill, step)


def test_what_no_memory_is_large_enough_for() -> None:
    with pytest.raises(UsageError, match="holds 9 tokens at its end, and keys and values have room for 8"):
        decode([(0, 8, 2)], Limits((8,), (8, 16), (1,), 8), prefill, step)


ASKS = st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=20)


@given(ASKS)
def test_everybody_gets_all_tokens_and_the_device_does_one_thing_at_a_time(asks: list[tuple[int, int, int]]) -> None:
    tight = Limits(LIMITS.lengths, LIMITS.contexts, LIMITS.batches, 20)
    found = decode(asks, tight, prefill, step)
    assert sorted(each.arrived_ps for each in found.served) == sorted(time for time, *_ in asks)
    assert sum(each.tokens for each in found.served) == sum(output for *_, output in asks)
    assert found.peak_tokens <= 20
    for (begin, timed), (after, _) in zip(found.steps, found.steps[1:], strict=False):
        assert begin + timed.total_ps <= after
    prompts = [timed for _, timed in found.steps if timed.phase == "prefill"]
    assert len(prompts) == len(asks)
    # First come, first served: no request starts before an earlier one.
    begun = [each.began_ps for each in sorted(found.served, key=lambda each: (each.arrived_ps, each.began_ps))]
    assert begun == sorted(begun)
    assert all(each.arrived_ps <= each.began_ps < each.token_ps[0] <= each.ended_ps for each in found.served)


@given(ASKS)
def test_the_time_between_tokens_is_that_of_each_token_after_the_one_before(asks: list[tuple[int, int, int]]) -> None:
    """Computed from the programs that ran: a prompt gives a token to the next request, a step to all running ones."""
    found = decode(asks, Limits(LIMITS.lengths, LIMITS.contexts, LIMITS.batches, 20), prefill, step)
    coming = [output for _, _, output in sorted(asks, key=lambda ask: ask[0])]
    running: list[tuple[int, list[int]]] = []
    tokens: list[list[int]] = []
    for begin, timed in found.steps:
        if timed.phase == "prefill":
            tokens.append([])
            running.append((coming.pop(0), tokens[-1]))
            got = running[-1:]
        else:
            got = running
        for _, times in got:
            times.append(begin + timed.total_ps)
        running = [(output, times) for output, times in running if len(times) < output]
    figures = classed("decoder", found.served, found.served[-1].ended_ps)
    between = [times[at] - times[at - 1] for times in tokens for at in range(1, len(times))]
    assert len(between) == figures.tokens - len(asks)
    assert figures.each == LatencySpread.of(between)
    arrivals = sorted(time for time, *_ in asks)
    assert figures.first == LatencySpread.of(
        times[0] - arrived for times, arrived in zip(tokens, arrivals, strict=True)
    )


def test_a_prompt_in_between_is_a_long_time_between_two_tokens() -> None:
    found = decode([(0, 4, 4), (60, 8, 1)], LIMITS, prefill, step)
    assert told(found)[1:3] == [(40, "decode", 1, 8), (148, "prefill", 1, 8)]
    each = classed("decoder", found.served, 1000).each
    assert each is not None
    assert (each.p50, each.most) == (108, 188)  # the mean of the request is 134
