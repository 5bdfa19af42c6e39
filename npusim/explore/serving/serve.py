"""Runs a scenario and computes its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from npusim.driver import Priority
from npusim.energy import idle_energy
from npusim.errors import UsageError
from npusim.explore.serving import arrivals
from npusim.explore.serving.decoder import Limits, decode
from npusim.explore.serving.models import Asked, by_events, merged, on_rings
from npusim.explore.serving.scenario import RINGS, DecoderSource, Scenario
from npusim.explore.serving.served import Class, Served, classed
from npusim.explore.serving.times import Timed, Timer
from npusim.hw.config import Config
from npusim.report.format import duration
from npusim.runtime import Session
from npusim.runtime.provenance import of_device

METHODS = {
    RINGS: "every request is a job in the rings of the simulated device, with preemption",
    "times": "events with the simulated time of each program: one job at a time, by priority, without preemption",
    "decoder": "events with the simulated time of each program: one prompt at a time, steps for all running requests",
}


@dataclass(frozen=True, slots=True)
class Serving:
    """The result of a scenario.

    ``elapsed_ps``: from 0 to the end of the last request, of which the device is busy for ``busy_ps``. ``energy_fj``:
    of all jobs and of ``idle_fj``, the idle time; None if a price is unknown. ``cache_tokens``: maximum use and
    capacity of the KV cache. ``timed``: the programs. ``steps``: number of runs by phase.
    """

    device: Config
    method: str
    seed: int
    elapsed_ps: int
    busy_ps: int
    energy_fj: int | None
    idle_fj: int | None
    classes: tuple[Class, ...]
    served: tuple[Served, ...]
    timed: tuple[Timed, ...]
    cache_tokens: tuple[int, int] = (0, 0)
    steps: tuple[tuple[str, int], ...] = ()

    @property
    def utilisation(self) -> float:
        """The fraction of time in which the device is busy."""
        return self.busy_ps / self.elapsed_ps if self.elapsed_ps else 0.0

    @property
    def tokens(self) -> int:
        """Tokens generated for all requests."""
        return sum(each.tokens for each in self.classes)

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "config": self.device.name,
            "method": self.method,
            "seed": self.seed,
            "elapsed_ps": self.elapsed_ps,
            "busy_ps": self.busy_ps,
            "utilisation": self.utilisation,
            "energy_fj": self.energy_fj,
            "idle_energy_fj": self.idle_fj,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens * 10**12 / self.elapsed_ps if self.elapsed_ps else 0.0,
            "energy_per_token_fj": None if self.energy_fj is None or not self.tokens else self.energy_fj // self.tokens,
            "cache_tokens_most": self.cache_tokens[0],
            "cache_tokens_room": self.cache_tokens[1],
            "classes": [each.to_json_dict() for each in self.classes],
            "programs": [
                {
                    "model": each.model,
                    "phase": each.phase,
                    **each.sizes,
                    "time_ps": each.time_ps,
                    "total_ps": each.total_ps,
                    "energy_fj": each.energy_fj,
                    "timeline_digest": each.result.timeline.digest(),
                }
                for each in self.timed
            ],
            "provenance": {
                **of_device(self.device),
                "models": [each.result.provenance["model"] for each in self.timed],
                "seed": self.seed,
            },
        }


def serve(scenario: Scenario, config: Config, seed: int | None = None) -> Serving:
    """Run a scenario on a device. The result depends only on the seed.

    Raises UsageError, and errors of compiling and running the models.
    """
    seed = scenario.seed if seed is None else seed
    with Session(config, cache_dir=False) as session:
        timer = Timer(session)
        if scenario.decoder is not None:
            return _decoder(scenario, scenario.decoder, config, timer, seed)
        return _models(scenario, config, timer, seed)


def _models(scenario: Scenario, config: Config, timer: Timer, seed: int) -> Serving:
    asked = {
        load.name: Asked(
            timer.time(load.name, "", scenario.folder / load.file, load.shapes, {}, load.bind),
            Priority[load.priority.upper()],
        )
        for load in scenario.models
    }
    asks = merged(
        {
            load.name: arrivals.times(load, scenario.until_ps, seed, load.name, scenario.folder)
            for load in scenario.models
        }
    )
    if not asks:
        raise UsageError(f"no request arrives before {duration(scenario.until_ps)}")
    served = on_rings(config, asked, asks) if scenario.method == RINGS else by_events(asked, asks)
    energies, busy = [each.energy_fj for each in served], sum(each.device_ps for each in served)
    return _figures(config, scenario.method, seed, served, list(asked), energies, busy, timer)


def _decoder(scenario: Scenario, decoder: DecoderSource, config: Config, timer: Timer, seed: int) -> Serving:
    folder = scenario.folder

    def prefill(length: int) -> Timed:
        sizes = {"batch": 1, "length": length}
        return timer.time("decoder", "prefill", folder / decoder.prefill, decoder.prefill_shapes, sizes, {})

    def step(batch: int, context: int) -> Timed:
        sizes = {"batch": batch, "context": context}
        return timer.time("decoder", "decode", folder / decoder.decode, decoder.decode_shapes, sizes, {})

    asks = arrivals.prompts(decoder, scenario.until_ps, seed, folder)
    if not asks:
        raise UsageError(f"no request arrives before {duration(scenario.until_ps)}")
    smallest = step(decoder.batches[0], decoder.contexts[0])
    room = decoder.kv_cache or config.dram.bytes - smallest.constant_bytes - prefill(decoder.lengths[0]).constant_bytes
    each = token_bytes(smallest, decoder)
    limits = Limits(decoder.lengths, decoder.contexts, decoder.batches, room // each)
    found = decode(asks, limits, prefill, step)
    busy = sum(timed.time_ps for _, timed in found.steps)
    energies = [timed.energy_fj for _, timed in found.steps]
    figures = _figures(config, "decoder", seed, found.served, ["decoder"], energies, busy, timer)
    counts: dict[str, int] = {}
    for _, timed in found.steps:
        counts[timed.phase] = counts.get(timed.phase, 0) + 1
    return replace(figures, cache_tokens=(found.peak_tokens, limits.tokens), steps=tuple(counts.items()))


def token_bytes(step: Timed, decoder: DecoderSource) -> int:
    """Bytes of keys and values per token of one request: from the inputs whose shapes have a context. Raises
    UsageError."""
    caches = {name for name, shape in decoder.decode_shapes.items() if "context" in shape}
    total = sum(binding.nbytes for binding in step.program.inputs if binding.name in caches)
    tokens = step.sizes["batch"] * step.sizes["context"]
    if not total:
        raise UsageError("decoder.decode_shapes: no input of the step has a dimension context, so nothing is cached")
    return -(-total // tokens)


def _figures(
    config: Config,
    method: str,
    seed: int,
    served: Sequence[Served],
    names: Sequence[str],
    energies: Sequence[int | None],
    busy: int,
    timer: Timer,
) -> Serving:
    elapsed = max(each.ended_ps for each in served)
    idle = idle_energy(config, max(0, elapsed - busy)).total
    known = [energy for energy in (*energies, idle) if energy is not None]
    of = partial(classed, elapsed_ps=elapsed)
    classes = tuple([of(name, [each for each in served if each.name == name]) for name in names])
    total = sum(known) if len(known) == len(energies) + 1 else None
    return Serving(config, method, seed, elapsed, busy, total, idle, classes, tuple(served), tuple(timer.timed))
