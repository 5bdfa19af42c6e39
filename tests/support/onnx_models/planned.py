"""Random models that decide by computed values which nodes run, how often, and how large values are.

All values are small integers in float32, so sums are exact and all implementations decide alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
from onnx import parser

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'
ROWS, COLUMNS = 12, 4


class Chain:
    """Writes a chain of steps on a value of [rows, COLUMNS]; the number of rows is known at run time only."""

    def __init__(self, rng: np.random.Generator, depth: int) -> None:
        self.rng = rng
        self.depth = depth
        self.lines: list[str] = []
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"d{self.depth}_{self.rng.integers(10**6)}_{self._count}"

    def line(self, text: str) -> str:
        """Add a node ``{} = ...`` and return the name of its result."""
        made = self.name()
        self.lines.append(text.replace("{}", made, 1))
        return made

    def number(self, value: int) -> str:
        return self.line(f"{{}} = Constant<value = float {{{value}.0}}>()")

    def integers(self, *values: int) -> str:
        listed = ", ".join(map(str, values))
        return self.line(f"{{}} = Constant<value = int64[{len(values)}] {{{listed}}}>()")

    def bounded(self, x: str) -> str:
        return self.line(f"{{}} = Clip({x}, {self.number(-8)}, {self.number(8)})")

    def condition(self, x: str) -> str:
        total = self.line(f"{{}} = ReduceSum<keepdims = 0>({x})")
        return self.line(f"{{}} = Greater({total}, {self.number(int(self.rng.integers(-3, 4)))})")

    def rows_mask(self, x: str) -> str:
        sums = self.line(f"{{}} = ReduceSum<keepdims = 0>({x}, {self.integers(1)})")
        return self.line(f"{{}} = Greater({sums}, {self.number(int(self.rng.integers(-6, 2)))})")

    def count(self, x: str, most: int) -> str:
        """A number from 0 to ``most`` - 1 that depends on the values."""
        positive = self.line(f"{{}} = Cast<to = 7>({self.line(f'{{}} = Greater({x}, {self.number(0)})')})")
        total = self.line(f"{{}} = ReduceSum<keepdims = 0>({positive})")
        return self.line(f"{{}} = Mod({total}, {self.line(f'{{}} = Constant<value = int64 {{{most}}}>()')})")

    # Steps

    def elementwise(self, x: str) -> str:
        kind = self.rng.choice(["Relu({x})", "Neg({x})", "Add({x}, {c})", "Sub({c}, {x})", "Mul({x}, {x})"])
        return self.bounded(self.line("{} = " + kind.format(x=x, c=self.number(int(self.rng.integers(-2, 3))))))

    def branch(self, x: str) -> str:
        then, other = self.body(x), self.body(x)
        result = self.name()
        self.lines.append(
            f"{result} = If ({self.condition(x)}) <then_branch = t{result} () => (float[N{result}, {COLUMNS}] "
            f"{then[1]}) {{ {then[0]} }}, else_branch = e{result} () => (float[M{result}, {COLUMNS}] {other[1]}) "
            f"{{ {other[0]} }}>"
        )
        return result

    def selected(self, x: str) -> str:
        mask = self.rows_mask(x)
        if self.rng.integers(2):
            return self.line(f"{{}} = Compress<axis = 0>({x}, {mask})")
        found = self.line(f"{{}} = Reshape({self.line(f'{{}} = NonZero({mask})')}, {self.integers(-1)})")
        return self.line(f"{{}} = Gather<axis = 0>({x}, {found})")

    def loop(self, x: str) -> str:
        result, rows = self.name(), self.name()
        inner = Chain(self.rng, self.depth + 1)
        step, go, value, sums = inner.name(), inner.name(), inner.name(), inner.name()
        y = inner.steps(value, 1, loops=False)
        last = inner.line(f"{{}} = ReduceSum<keepdims = 0>({inner.bounded(y)})")
        inner.lines.append(f"{sums} = Reshape({last}, {inner.integers(1)})")
        going = inner.line(f"{{}} = Less({last}, {inner.number(9)})")
        returned = inner.line(f"{{}} = Identity({y})")
        self.lines.append(
            f'{result}, {rows} = Loop ({self.count(x, 4)}, "", {x}) <body = b{result} (int64 {step}, bool {go}, '
            f"float[V{result}, {COLUMNS}] {value}) => (bool {going}, float[W{result}, {COLUMNS}] {returned}, "
            f"float[1] {sums}) {{ {' '.join(inner.lines)} }}>"
        )
        total = self.line(f"{{}} = ReduceSum<keepdims = 1>({rows})")
        return self.bounded(self.line(f"{{}} = Add({result}, {total})"))

    def sliced(self, x: str) -> str:
        """The first rows, at least one more than nothing if there is one."""
        shape = self.line(f"{{}} = Shape({x})")
        end = self.line(f"{{}} = Reshape({self.count(x, ROWS)}, {self.integers(1)})")
        kept = self.line(f"{{}} = Slice({x}, {self.integers(0)}, {end}, {self.integers(0)})")
        again = self.line(f"{{}} = Concat<axis = 0>({kept}, {x})")
        return self.line(f"{{}} = Slice({again}, {self.integers(0, 0)}, {shape})")

    def steps(self, x: str, count: int, *, loops: bool = True) -> str:
        kinds: list[Callable[[str], str]] = [self.elementwise, self.selected, self.sliced]
        if self.depth < 3:
            kinds += [self.branch, self.loop] if loops else [self.branch]
        for _ in range(count):
            x = kinds[int(self.rng.integers(len(kinds)))](x)
        return x

    def body(self, x: str) -> tuple[str, str]:
        inner = Chain(self.rng, self.depth + 1)
        y = inner.elementwise(inner.steps(x, int(self.rng.integers(1, 3))))
        return " ".join(inner.lines), y


def planned_model(seed: int) -> onnx.ModelProto:
    """A model from ``x``, float32[ROWS, COLUMNS], to ``y`` with an unknown number of rows."""
    chain = Chain(np.random.default_rng(seed), 0)
    last = chain.steps("x", 4)
    chain.lines.append(f"y = Identity({last})")
    text = f"{HEADER}g (float[{ROWS}, {COLUMNS}] x) => (float[N, {COLUMNS}] y) {{ {' '.join(chain.lines)} }}"
    model = parser.parse_model(text)
    onnx.checker.check_model(model)
    return model


def inputs_of(seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Values for a model of :func:`planned_model`."""
    return {"x": np.random.default_rng(seed).integers(-4, 5, (ROWS, COLUMNS)).astype(np.float32)}
