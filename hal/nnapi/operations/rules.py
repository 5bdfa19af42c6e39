"""Rules that several operations share; each docstring is the message of a broken one."""

from __future__ import annotations

from .definition import Rule
from .view import OpView


def constant(rule: Rule, index: int) -> Rule:
    """A rule that is only asked when the value of input ``index`` is known."""

    def asked(view: OpView) -> bool:
        return view.constant(index) is None or rule(view)

    asked.__doc__, asked.__name__ = rule.__doc__, rule.__name__
    return asked


def ranks(index: int, *allowed: int) -> Rule:
    """The rule that input ``index`` has one of these ranks."""

    def rule(view: OpView) -> bool:
        return view.has_rank(index, *allowed)

    rule.__doc__ = f"input {index} must have rank {' or '.join(map(str, allowed))}"
    rule.__name__ = f"input_{index}_rank"
    return rule


def rank_at_most(index: int, most: int) -> Rule:
    """The rule that input ``index`` has at most this rank."""

    def rule(view: OpView) -> bool:
        dims = view.dims(index)
        return dims is None or len(dims) <= most

    rule.__doc__ = f"input {index} must have at most rank {most}"
    rule.__name__ = f"input_{index}_rank"
    return rule


def same_quantisation(index: int) -> Rule:
    """The rule that input ``index`` and output 0 have one scale and one zero point."""

    def rule(view: OpView) -> bool:
        source, target = view.inputs[index], view.outputs[0]
        return source.type != target.type or (source.scale, source.zeroPoint) == (target.scale, target.zeroPoint)

    rule.__doc__ = f"input {index} and output 0 must have the same scale and zero point"
    rule.__name__ = f"input_{index}_quantisation"
    return rule


def activation(index: int) -> Rule:
    """The rule that scalar input ``index`` is a fused activation."""

    def rule(view: OpView) -> bool:
        value = view.scalar(index)
        return value is None or value in (0, 1, 2, 3)

    rule.__doc__ = f"input {index} must be a FusedActivationFunc: 0 to 3"
    rule.__name__ = f"input_{index}_activation"
    return rule


def positive(*indexes: int) -> Rule:
    """The rule that these scalar inputs are > 0."""

    def rule(view: OpView) -> bool:
        return all((value := view.scalar(index)) is None or value > 0 for index in indexes)

    rule.__doc__ = f"inputs {', '.join(map(str, indexes))} must be > 0"
    rule.__name__ = f"inputs_{'_'.join(map(str, indexes))}_positive"
    return rule


def axis_of(index: int, tensor: int = 0) -> Rule:
    """The rule that scalar input ``index`` is a dimension of input ``tensor``."""

    def rule(view: OpView) -> bool:
        axis, dims = view.scalar(index), view.dims(tensor)
        return axis is None or dims is None or -len(dims) <= axis < len(dims)

    rule.__doc__ = f"input {index} must be in [-n, n), n being the rank of input {tensor}"
    rule.__name__ = f"input_{index}_axis"
    return rule


def one_each(index: int, tensor: int = 0) -> Rule:
    """The rule that input ``index`` is a vector with one entry for each dimension of input ``tensor``."""

    def rule(view: OpView) -> bool:
        dims, around = view.dims(index), view.dims(tensor)
        if view.omitted(index) or dims is None:
            return True
        return len(dims) == 1 and (around is None or dims[0] in (0, len(around)))

    rule.__doc__ = f"input {index} must be 1-D with one entry for each dimension of input {tensor}"
    rule.__name__ = f"input_{index}_length"
    return rule


def output_quantisation(scale: float, zero_unsigned: int, index: int = 0) -> Rule:
    """The rule that a quantised output has this scale, and this zero point (128 less where it is signed)."""

    def rule(view: OpView) -> bool:
        operand = view.outputs[index]
        if operand.type not in _ZERO_SHIFT:
            return True
        return operand.scale == scale and operand.zeroPoint == zero_unsigned + _ZERO_SHIFT[operand.type]

    rule.__doc__ = (
        f"a quantised output must have scale {scale} and zero point {zero_unsigned} ({zero_unsigned - 128} if signed)"
    )
    rule.__name__ = "output_quantisation"
    return rule


_ZERO_SHIFT = {5: 0, 14: -128}  # TENSOR_QUANT8_ASYMM, TENSOR_QUANT8_ASYMM_SIGNED
