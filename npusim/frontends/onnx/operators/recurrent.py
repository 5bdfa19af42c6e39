"""RNN, GRU and LSTM: a loop over the steps. The input products of all steps are one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from npusim.dtypes import DType
from npusim.frontends.onnx.control import MAX_ITERATIONS
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.quantised import dequantized_product, range_parameters
from npusim.frontends.onnx.registry import MICROSOFT, handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops.iterations import Scanned, iterate

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
ACTIVATIONS = {
    "Elu": (Unary.ELU, 1.0, 0.0),
    "HardSigmoid": (Unary.HARD_SIGMOID, 0.2, 0.5),
    "LeakyRelu": (Unary.LEAKY_RELU, 0.01, 0.0),
    "Relu": (Unary.RELU, 0.0, 0.0),
    "Sigmoid": (Unary.SIGMOID, 0.0, 0.0),
    "Softplus": (Unary.SOFTPLUS, 0.0, 0.0),
    "Softsign": (Unary.SOFTSIGN, 0.0, 0.0),
    "Tanh": (Unary.TANH, 0.0, 0.0),
}

_LIMITS = [f"up to {MAX_ITERATIONS} steps; activations {', '.join(ACTIVATIONS)} with their default parameters"]


@dataclass(frozen=True)
class Cell:
    """One direction of a recurrent layer.

    ``weights`` [H, gates * H] multiply the state; ``bias`` [gates * H] is added to that product. ``peepholes``: three
    vectors [H] of an LSTM (input, output, forget), or empty.
    """

    node: Node
    hidden: int
    weights: Tensor
    bias: Tensor
    functions: list[tuple[Unary, float, float]]
    peepholes: list[Tensor]
    clip: float
    linear_before_reset: bool
    input_forget: bool
    parameters: tuple[Tensor, Tensor] | None = None
    """Scale and zero point of 8-bit weights."""

    def activate(self, index: int, x: Tensor) -> Tensor:
        """Activation function ``index`` of the direction, after the optional clip."""
        if self.clip:
            x = self.node.unary(Unary.CLIP, x, -self.clip, self.clip)
        fn, p0, p1 = self.functions[index]
        return self.node.unary(fn, x, p0, p1)

    def part(self, x: Tensor, first: int, count: int = 1) -> Tensor:
        """Gates ``first`` to ``first + count`` of [rows, gates * H]."""
        return self.node.slice(x, 1, first * self.hidden, count * self.hidden)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """The elementwise sum of two tensors."""
        return self.node.binary(Binary.ADD, a, b)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """The elementwise product of two tensors."""
        return self.node.binary(Binary.MUL, a, b)

    def step(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        """The state after a step. x [batch, gates * H]: the contribution of the input to the gates."""
        return {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[self.node.op_type](x, state)

    def _rnn(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        return [self.activate(0, self.add(x, self.node.add("matmul", state[0], self.weights, self.bias)))]

    @cached_property
    def _gru_parts(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weights and bias of the gates update and reset, and of hidden. All steps have the same."""
        weights, bias = [self.part(self.weights, 0, 2), self.part(self.weights, 2)], []
        for start, count in ((0, 2), (2, 1)):
            bias.append(self.node.slice(self.bias, 0, start * self.hidden, count * self.hidden))
        return weights, bias

    def _gru(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Gates in the order update, reset, hidden."""
        node, h = self.node, state[0]
        (both, last), bias = self._gru_parts
        gates = self.activate(0, self.add(self.part(x, 0, 2), node.add("matmul", h, both, bias[0])))
        update, reset = self.part(gates, 0), self.part(gates, 1)
        # With linear_before_reset the reset gate is applied to the product including its bias, otherwise to the state
        # before it.
        if self.linear_before_reset:
            share = self.mul(reset, node.add("matmul", h, last, bias[1]))
        else:
            share = node.add("matmul", self.mul(reset, h), last, bias[1])
        new = self.activate(1, self.add(self.part(x, 2), share))
        # (1 - update) * new + update * h, with one product less
        return [self.add(new, self.mul(update, node.binary(Binary.SUB, h, new)))]

    def _lstm(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Gates in the order input, output, forget, cell."""
        node, (h, c) = self.node, state
        total = self.add(x, product(node, h, self.weights, self.bias, self.parameters))
        raw = [self.part(total, gate) for gate in range(4)]
        if self.peepholes:
            raw[0] = self.add(raw[0], self.mul(self.peepholes[0], c))
            raw[2] = self.add(raw[2], self.mul(self.peepholes[2], c))
        enter = self.activate(0, raw[0])
        keep = node.binary(Binary.SUB, node.like(1, enter), enter) if self.input_forget else self.activate(0, raw[2])
        cell = self.add(self.mul(keep, c), self.mul(enter, self.activate(1, raw[3])))
        if self.peepholes:
            # Only the output gate reads the new cell state.
            raw[1] = self.add(raw[1], self.mul(self.peepholes[1], cell))
        fn, p0, p1 = self.functions[2]
        return [self.mul(self.activate(0, raw[1]), node.unary(fn, cell, p0, p1)), cell]


def _functions(node: Node, directions: int) -> list[list[tuple[Unary, float, float]]]:
    """The activation functions of each direction."""
    defaults = DEFAULTS[node.op_type]
    names = node.texts_attr("activations") or defaults * directions
    if node.floats_attr("activation_alpha") or node.floats_attr("activation_beta"):
        node.refuse("parameters of activations are not supported")
    unknown = [name for name in names if name not in ACTIVATIONS]
    if unknown or len(names) != len(defaults) * directions:
        node.refuse(f"activations {names} are not supported; supported: {', '.join(ACTIVATIONS)}")
    rows = [ACTIVATIONS[name] for name in names]
    return [rows[i * len(defaults) : (i + 1) * len(defaults)] for i in range(directions)]


def _direction(node: Node, tensor: Tensor, index: int) -> Tensor:
    """One direction of a parameter whose first dimension is the direction."""
    return node.reshape(node.slice(tensor, 0, index, 1), tensor.shape[1:])


def _run(node: Node, cell: Cell, share: Tensor, state: list[Tensor], backwards: bool) -> tuple[Tensor, list[Tensor]]:
    """The hidden states of all steps, in order of time: [steps, 1, batch, H], and the last states.

    ``share`` [steps * batch, gates * H]: the contribution of the input to the gates.
    """
    lengths, (batch, hidden) = node.optional(4), state[0].shape
    steps, count = share.shape[0] // batch, len(state)
    column = None if lengths is None else node.reshape(lengths, (batch, 1))
    clocks: list[Tensor] = []
    if column is not None:
        # The number of the step is a state: then all steps are alike.
        clocks = [node.reshape(node.like(steps - 1 if backwards else 0, column), (1, 1))]
        # A sequence without steps ends with a state of zeros, as in onnxruntime.
        if any(node.optional(5 + index) is not None for index in range(count)):
            begun = node.binary(Binary.GT, column, node.like(0, column))
            state = [node.add("select", begun, each, node.like(0, each)) for each in state]

    def step(now: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        made = cell.step(parts[0], list(now[:count]))
        row, ticked = made[0], list(now[count:])
        if lengths is not None:
            # A sequence that has ended keeps its state, and its output is zero. Each step has a view of the lengths:
            # comparisons of one view would be computed together, before all steps.
            alive = node.binary(Binary.GT, node.reshape(lengths, (batch, 1)), now[count])
            row = node.add("select", alive, made[0], node.like(0, made[0]))
            made = [node.add("select", alive, *pair) for pair in zip(made, now[:count], strict=True)]
            ticked = [node.binary(Binary.SUB if backwards else Binary.ADD, now[count], node.like(1, now[count]))]
        return [*made, *ticked], [node.reshape(row, (1, 1, batch, hidden))]

    given = Scanned(share, size=batch, backwards=backwards)
    last, (rows,) = iterate(node, steps, [*state, *clocks], [given], step, backwards=[backwards])
    return rows, last[:count]


def _initial(
    node: Node, count: int, index: int, shape: tuple[int, int], batch_first: bool, like: Tensor
) -> list[Tensor]:
    """The initial states of one direction, given or zero."""
    states = []
    for given in (node.optional(5 + i) for i in range(count)):
        if given is None:
            states.append(node.expand(node.like(0, like), shape))
        else:
            states.append(_direction(node, node.transpose(given, (1, 0, 2)) if batch_first else given, index))
    return states


def _cells(node: Node, hidden: int, directions: int, like: Tensor) -> list[tuple[Cell, Tensor, Tensor]]:
    """(cell, input weights [features, gates * H], input bias) per direction."""
    width = GATES[node.op_type] * hidden
    bias, peephole = node.optional(3), node.optional(7)
    if bias is None:
        bias = node.expand(node.like(0, like), (directions, 2 * width))
    clip = node.float_attr("clip", 0.0)
    flags = bool(node.int_attr("linear_before_reset", 0)), bool(node.int_attr("input_forget", 0))
    cells = []
    for index, functions in enumerate(_functions(node, directions)):
        pair = _direction(node, bias, index)
        weights, recurrent = (node.transpose(_direction(node, node.input(i), index), (1, 0)) for i in (1, 2))
        vectors = []
        if peephole is not None:
            row = _direction(node, peephole, index)
            vectors = [node.slice(row, 0, part * hidden, hidden) for part in range(3)]
        own = node.slice(pair, 0, width, width)
        cell = Cell(node, hidden, recurrent, own, functions, vectors, clip, *flags, _parameters(node, index, 10))
        cells.append((cell, weights, node.slice(pair, 0, 0, width)))
    return cells


def _parameters(node: Node, direction: int, at: int) -> tuple[Tensor, Tensor] | None:
    """Scale and zero point, inputs ``at`` and ``at`` + 1, of the weights of one direction: numbers, or one per gate."""
    scale, zero = node.optional(at), node.optional(at + 1)
    if scale is None or zero is None:
        return None
    first, second = (node.slice(each, 0, direction, 1) for each in (scale, zero))
    return node.reshape(first, first.shape[1:]), node.reshape(second, second.shape[1:])


def product(node: Node, x: Tensor, w: Tensor, bias: Tensor, parameters: tuple[Tensor, Tensor] | None) -> Tensor:
    """x times weights, plus a bias. 8-bit weights are multiplied by x as integers with a scale of its own."""
    if parameters is None:
        return node.add("matmul", x, w, bias)
    scale, zero = range_parameters(node, x)
    numbers = node.add("quantize", x, scale, node.cast(zero, DType.INT32), to=DType.UINT8)
    return dequantized_product(node, numbers, w, (scale, parameters[0]), zero, parameters[1], bias)


def _check(node: Node, x: Tensor, directions: int) -> int:
    """The hidden size. Checks the shapes of the weights."""
    w, r = node.input(1), node.input(2)
    gates, hidden = GATES[node.op_type], node.int_attr("hidden_size", r.shape[-1] if r.shape else 0)
    if w.shape != (directions, gates * hidden, x.shape[2]) or r.shape != (directions, gates * hidden, hidden):
        node.damaged(f"weights {list(w.shape)} and {list(r.shape)} do not fit {gates} gates of {hidden}")
    if not 0 < x.shape[0] <= MAX_ITERATIONS or not x.shape[1]:
        node.refuse(f"{x.shape[0]} steps of {x.shape[1]} sequences; 1 to {MAX_ITERATIONS} steps are supported")
    return hidden


@handles("RNN", "GRU", "LSTM", since=7, limits=_LIMITS)
def recurrent(node: Node) -> list[Tensor]:
    """Import RNN, GRU and LSTM as loops over their time steps."""
    x, direction = node.input(0), node.text_attr("direction", "forward")
    batch_first = bool(node.int_attr("layout", 0))
    if len(x.shape) != 3:
        node.damaged(f"input 0 must have 3 dimensions, is {list(x.shape)}")
    if direction not in ("forward", "reverse", "bidirectional"):
        node.damaged(f"attribute direction must be forward, reverse or bidirectional, is {direction!r}")
    x = node.transpose(x, (1, 0, 2)) if batch_first else x
    (steps, batch, features), directions = x.shape, 2 if direction == "bidirectional" else 1
    hidden = _check(node, x, directions)
    flat = node.reshape(x, (steps * batch, features))
    sequences, finals = [], []
    for index, (cell, weights, bias) in enumerate(_cells(node, hidden, directions, x)):
        state = _initial(node, 2 if node.op_type == "LSTM" else 1, index, (batch, hidden), batch_first, x)
        # One product for all steps: the contribution of inputs does not depend on the state, and a large product fills
        # the array.
        share = product(node, flat, weights, bias, _parameters(node, index, 8))
        rows, state = _run(node, cell, share, state, backwards=direction == "reverse" or index == 1)
        sequences.append(rows)
        finals.append([node.reshape(tensor, (1, batch, hidden)) for tensor in state])
    y = node.add("concat", *sequences, axis=1)
    last = [node.add("concat", *parts, axis=0) for parts in zip(*finals, strict=True)]
    if batch_first:
        return [node.transpose(y, (2, 0, 1, 3)), *(node.transpose(tensor, (1, 0, 2)) for tensor in last)]
    return [y, *last]


@handles("DynamicQuantizeLSTM", domain=MICROSOFT, limits=_LIMITS)
def dynamic_quantize_lstm(node: Node) -> list[Tensor]:
    """Import DynamicQuantizeLSTM: an LSTM with 8-bit weights [directions, inputs, gates * H], which multiplies inputs
    and states that it rounds to 8 bits."""
    inputs = [*node.inputs, *[None] * (12 - len(node.inputs))]
    for index in (1, 2):
        w = node.input(index)
        if inputs[6 + 2 * index] is None or inputs[7 + 2 * index] is None:
            node.damaged(f"scale and zero point of input {index} are required")
        if len(w.shape) != 3 or w.dtype not in (DType.INT8, DType.UINT8):
            node.damaged(f"input {index} must be int8 or uint8 [directions, inputs, gates], is {list(w.shape)}")
        inputs[index] = node.transpose(w, (0, 2, 1))
    return recurrent(node.acting_as("LSTM", inputs, 14))
