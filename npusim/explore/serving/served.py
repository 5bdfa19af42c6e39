"""Figures of served requests: waiting times, latencies, queues. All are derived from times in whole picoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from npusim.units import PS_PER_S


@dataclass(frozen=True, slots=True)
class Served:
    """One request. ``began_ps``: start of its first work. ``device_ps``, ``energy_fj``: its device time and energy,
    including context switches if it was preempted; None: unknown energy.

    ``token_ps``: completion time of each token of a decoder.
    """

    name: str
    arrived_ps: int
    began_ps: int
    ended_ps: int
    device_ps: int = 0
    energy_fj: int | None = None
    preemptions: int = 0
    token_ps: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of generated tokens."""
        return len(self.token_ps)

    @property
    def latency_ps(self) -> int:
        """Time from arrival to the end."""
        return self.ended_ps - self.arrived_ps

    @property
    def waited_ps(self) -> int:
        """Time from arrival to the first work."""
        return self.began_ps - self.arrived_ps


@dataclass(frozen=True, slots=True)
class LatencySpread:
    """Statistics of times: the mean (rounded down), percentiles by nearest rank, the maximum."""

    mean: int
    p50: int
    p90: int
    p99: int
    most: int

    @classmethod
    def of(cls, values: Iterable[int]) -> LatencySpread | None:
        """The statistics; None without values."""
        known = sorted(values)
        if not known:
            return None
        # Nearest rank: the smallest value that at least this percentage of all values does not exceed.
        p50, p90, p99 = (known[(len(known) * share + 99) // 100 - 1] for share in (50, 90, 99))
        return cls(sum(known) // len(known), p50, p90, p99, known[-1])

    def to_json_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Class:
    """Requests of one name. ``queued``: average and maximum number of waiting requests.

    ``first``: time to first token. ``each``: time between successive tokens of a request, over all requests.
    """

    name: str
    requests: int
    rate: float
    latency: LatencySpread | None
    waiting: LatencySpread | None
    queued: tuple[float, int]
    preemptions: int = 0
    tokens: int = 0
    first: LatencySpread | None = None
    each: LatencySpread | None = None

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "requests": self.requests,
            "requests_per_second": self.rate,
            "latency_ps": _json(self.latency),
            "waiting_ps": _json(self.waiting),
            "queue_mean": self.queued[0],
            "queue_most": self.queued[1],
            "preemptions": self.preemptions,
            "tokens": self.tokens,
            "first_token_ps": _json(self.first),
            "token_ps": _json(self.each),
        }


def _json(spread: LatencySpread | None) -> dict[str, int] | None:
    return None if spread is None else spread.to_json_dict()


def classed(name: str, served: Sequence[Served], elapsed_ps: int) -> Class:
    """The figures of the requests with one name, over ``elapsed_ps``."""
    first = [each.token_ps[0] - each.arrived_ps for each in served if each.tokens]
    gaps = [after - before for each in served for before, after in pairwise(each.token_ps)]
    return Class(
        name,
        len(served),
        len(served) * PS_PER_S / elapsed_ps if elapsed_ps else 0.0,
        LatencySpread.of(each.latency_ps for each in served),
        LatencySpread.of(each.waited_ps for each in served),
        (sum(each.waited_ps for each in served) / elapsed_ps if elapsed_ps else 0.0, most_waiting(served)),
        sum(each.preemptions for each in served),
        sum(each.tokens for each in served),
        LatencySpread.of(first),
        LatencySpread.of(gaps),
    )


def most_waiting(served: Iterable[Served]) -> int:
    """The maximum number of waiting requests. A request that begins on arrival does not wait."""
    # At the same time, requests begin before others arrive.
    changes = sorted(
        change for each in served if each.waited_ps for change in ((each.arrived_ps, 1), (each.began_ps, -1))
    )
    waiting = most = 0
    for _, change in changes:
        waiting += change
        most = max(most, waiting)
    return most
