"""Routines that draw random numbers. The numbers depend only on the seeds."""

from __future__ import annotations

from collections.abc import Sequence

from npusim import _core
from npusim.routines.base import Array, Params, Routine, Spec, register_routine
from npusim.routines.checks import F32, I32, check_operands, traffic, want
from npusim.work import ScalarWork

_ROUNDS = 10
"""Philox rounds per draw."""


def _infer(inputs: Sequence[Spec], params: Params) -> list[Spec]:
    check_operands(inputs, ("logits", 2, F32), ("seeds", 1, I32))
    logits, seeds = (spec.shape for spec in inputs)
    want(logits[1] >= 1, "logits must have at least one class")
    want(seeds == (2,), f"there must be two seeds, got {seeds[0]}")
    want(params["samples"] >= 0, f"samples must be >= 0, got {params['samples']}")
    return [Spec((logits[0], params["samples"]), I32)]


def _draw(inputs: Sequence[Array], params: Params, outputs: Sequence[Array]) -> None:
    logits, seeds = inputs
    # The key of the generator is two unsigned words, and seeds are signed.
    first, second = (int(seed) & 0xFFFF_FFFF for seed in seeds)
    _core.multinomial(logits, first, second, outputs[0])


def _work(inputs: Sequence[Spec], outputs: Sequence[Spec], params: Params) -> ScalarWork:
    classes = inputs[0].shape[1]
    draws = outputs[0].size * (_ROUNDS + classes.bit_length())
    return ScalarWork(inputs[0].size + draws, traffic(inputs, outputs))


register_routine(Routine("npusim.multinomial", 1, _infer, _draw, _work, {"samples": int}))
"""logits [b, classes], seeds [2] -> classes drawn [b, samples]."""
