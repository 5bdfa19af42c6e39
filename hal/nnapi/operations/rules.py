"""Rules that several operations share; each docstring is the message of its violation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .definition import Later, Rule, stated
from .signature import type_name
from .versions import Version
from .view import OpView


def constant(rule: Rule, index: int) -> Rule:
    """A rule that is checked only if the value of input ``index`` is known."""
    return stated(rule.__doc__ or "", lambda view: view.constant(index) is None or rule(view))


def ranks(index: int, *allowed: int) -> Rule:
    """The rule that input ``index`` has one of these ranks."""
    message = f"input {index} must have rank {' or '.join(map(str, allowed))}"
    return stated(message, lambda view: view.has_rank(index, *allowed))


def rank_at_most(index: int, most: int) -> Rule:
    """The rule that input ``index`` has at most this rank."""
    message = f"input {index} must have at most rank {most}"
    return stated(message, lambda view: (dims := view.dims(index)) is None or len(dims) <= most)


def same_quantisation(index: int) -> Rule:
    """The rule that input ``index`` and output 0 have one scale and one zero point."""

    def rule(view: OpView) -> bool:
        source, target = view.inputs[index], view.outputs[0]
        return source.type != target.type or (source.scale, source.zeroPoint) == (target.scale, target.zeroPoint)

    return stated(f"input {index} and output 0 must have the same scale and zero point", rule)


def same_rank(*indexes: int) -> Rule:
    """The rule that these inputs and output 0 have one rank."""

    def rule(view: OpView) -> bool:
        shapes = [*(view.dims(index) for index in indexes), view.out_dims()]
        return len({len(dims) for dims in shapes if dims is not None}) <= 1

    names = ", ".join(f"input {index}" for index in indexes)
    return stated(f"{names} and output 0 must have the same rank", rule)


def scalars(message: str, test: Callable[[Any], bool], *indexes: int) -> Rule:
    """The rule that these scalar inputs pass a test, as far as they are known."""
    return stated(message, lambda view: all((x := view.scalar(index)) is None or test(x) for index in indexes))


def activation(index: int) -> Rule:
    """The rule that scalar input ``index`` is a fused activation."""
    return scalars(f"input {index} must be a FusedActivationFunc: 0 to 3", lambda value: value in (0, 1, 2, 3), index)


def one_of(index: int, what: str, *allowed: int) -> Rule:
    """The rule that scalar input ``index`` has one of these values."""
    return scalars(f"input {index} must be {what}: {', '.join(map(str, allowed))}", lambda x: x in allowed, index)


def positive(*indexes: int) -> Rule:
    """The rule that these scalar inputs are > 0."""
    return scalars(f"inputs {', '.join(map(str, indexes))} must be > 0", lambda value: value > 0, *indexes)


def not_negative(*indexes: int) -> Rule:
    """The rule that these scalar inputs are >= 0."""
    return scalars(f"inputs {', '.join(map(str, indexes))} must be >= 0", lambda value: value >= 0, *indexes)


def axis_of(index: int, tensor: int = 0) -> Rule:
    """The rule that scalar input ``index`` is a dimension of input ``tensor``."""

    def rule(view: OpView) -> bool:
        axis, dims = view.scalar(index), view.dims(tensor)
        return axis is None or dims is None or -len(dims) <= axis < len(dims)

    return stated(f"input {index} must be in [-n, n), n being the rank of input {tensor}", rule)


def one_each(index: int, tensor: int = 0) -> Rule:
    """The rule that input ``index`` is a vector with one entry for each dimension of input ``tensor``."""

    def rule(view: OpView) -> bool:
        dims, around = view.dims(index), view.dims(tensor)
        if view.omitted(index) or dims is None:
            return True
        return len(dims) == 1 and (around is None or dims[0] in (0, len(around)))

    return stated(f"input {index} must be 1-D with one entry for each dimension of input {tensor}", rule)


def output_quantisation(scale: float, zero_unsigned: int, index: int = 0) -> Rule:
    """The rule that a quantised output has this scale, and this zero point (128 less where it is signed)."""

    def rule(view: OpView) -> bool:
        operand = view.outputs[index]
        if operand.type not in _ZERO_SHIFT:
            return True
        return operand.scale == scale and operand.zeroPoint == zero_unsigned + _ZERO_SHIFT[operand.type]

    signed = zero_unsigned - 128
    return stated(
        f"a quantised output must have scale {scale} and zero point {zero_unsigned} ({signed} if signed)", rule
    )


_ZERO_SHIFT = {5: 0, 14: -128}  # TENSOR_QUANT8_ASYMM, TENSOR_QUANT8_ASYMM_SIGNED


def inputs_beyond(count: int, version: Version) -> Later:
    """A later feature: more than ``count`` inputs."""
    return version, stated(f"more than {count} inputs", lambda view: len(view.inputs) > count)


def outputs_beyond(count: int, version: Version) -> Later:
    """A later feature: more than ``count`` outputs."""
    return version, stated(f"more than {count} outputs", lambda view: len(view.outputs) > count)


def input_types(index: int, version: Version, *types: int) -> Later:
    """These types of an input came with this version, though the interface had them before."""
    message = f"input {index} of {', '.join(map(type_name, types))}"
    return version, stated(message, lambda view: view.inputs[index].type in types)


def other_ranks(index: int, version: Version, *ranks: int) -> Later:
    """All known ranks of an input but these came with this version."""
    message = f"input {index} of another rank than {' or '.join(map(str, ranks))}"

    def uses(view: OpView) -> bool:
        dims = view.dims(index)
        return dims is not None and len(dims) not in ranks

    return version, stated(message, uses)
