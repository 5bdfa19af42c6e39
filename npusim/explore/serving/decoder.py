"""A decoder with continuous batching: one prompt at a time, decode steps for all running requests.

After each program the next one is chosen. A prompt has precedence if the batch and the KV cache have room for its
request up to its last token. Otherwise all running requests get a token. Programs exist for certain batch sizes,
lengths and contexts; the next larger one is used. The batch is padded, and the longest request determines the context.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from npusim.errors import UsageError
from npusim.explore.serving.served import Served
from npusim.explore.serving.times import Timed, next_larger


@dataclass(frozen=True, slots=True)
class Limits:
    """``lengths``, ``contexts``, ``batches``: sizes of the compiled programs. ``tokens``: capacity of the KV cache."""

    lengths: Sequence[int]
    contexts: Sequence[int]
    batches: Sequence[int]
    tokens: int


@dataclass(slots=True)
class _Request:
    arrived_ps: int
    prompt: int
    output: int
    began_ps: int = 0
    token_ps: list[int] = field(default_factory=list)

    @property
    def made(self) -> int:
        return len(self.token_ps)

    @property
    def tokens(self) -> int:
        """Entries of the KV cache at the end. The last token is not cached."""
        return self.prompt + self.output - 1

    @property
    def context(self) -> int:
        """Current entries of the KV cache."""
        return self.prompt + self.made - 1


@dataclass(frozen=True, slots=True)
class DecoderResult:
    """``steps``: the programs that ran, with their start times. ``peak_tokens``: the maximum of used and reserved
    entries of the KV cache."""

    served: list[Served]
    steps: list[tuple[int, Timed]]
    peak_tokens: int


def decode(
    asks: Sequence[tuple[int, int, int]],
    limits: Limits,
    prefill: Callable[[int], Timed],
    step: Callable[[int, int], Timed],
) -> DecoderResult:
    """Serve (time, prompt, output) requests. ``prefill(length)`` and ``step(batch, context)`` return timed programs.

    Raises UsageError for a request that exceeds all programs or the KV cache.
    """
    coming = deque(_Request(*ask) for ask in sorted(asks, key=lambda ask: ask[0]))
    for request in coming:
        _check(request, limits)
    waiting: deque[_Request] = deque()
    running: list[_Request] = []
    found = DecoderResult([], [], 0)
    now = held = peak = 0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrived_ps)
        while coming and coming[0].arrived_ps <= now:
            waiting.append(coming.popleft())
        if waiting and len(running) < limits.batches[-1] and held + waiting[0].tokens <= limits.tokens:
            request = waiting.popleft()
            held += request.tokens
            peak = max(peak, held)
            request.began_ps = now
            timed = prefill(next_larger(limits.lengths, request.prompt, "tokens in its prompt"))
            got = [request]
            running.append(request)
        else:
            batch = next_larger(limits.batches, len(running), "requests")
            context = next_larger(limits.contexts, max(request.context for request in running), "tokens before it")
            timed = step(batch, context)
            got = running
        found.steps.append((now, timed))
        now += timed.total_ps
        for request in got:
            request.token_ps.append(now)
        done = [request for request in running if request.made == request.output]
        held -= sum(request.tokens for request in done)
        running = [request for request in running if request.made < request.output]
        found.served.extend(_served(request, now) for request in done)
    return DecoderResult(found.served, found.steps, peak)


def _check(request: _Request, limits: Limits) -> None:
    next_larger(limits.lengths, request.prompt, "tokens in its prompt")
    if request.output > 1:
        next_larger(limits.contexts, request.tokens - 1, "tokens before its last one")
    if request.tokens > limits.tokens:
        raise UsageError(
            f"a request holds {request.tokens} tokens at its end, and keys and values have room for {limits.tokens}"
        )


def _served(request: _Request, now: int) -> Served:
    return Served("decoder", request.arrived_ps, request.began_ps, now, token_ps=tuple(request.token_ps))
