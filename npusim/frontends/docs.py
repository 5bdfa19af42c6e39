"""The manual's table of supported ONNX operators, made from the importers themselves.

``python -m npusim.frontends.docs`` writes docs/reference/operators.md; with ``--check`` it only says whether that file
is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from npusim.frontends.onnx import operators  # noqa: F401  (registers the importers)
from npusim.frontends.onnx.control import MAX_ITERATIONS
from npusim.frontends.onnx.node import MOST_DECIDING
from npusim.frontends.onnx.registry import OperatorEntry, entries
from npusim.frontends.onnx.versions import FIRST_OPSET, OLDEST_OPSET
from npusim.isa.base import Unit
from npusim.ops.base import REGISTRY, REQUIRED
from npusim.pages import write_or_check

DEFAULT_PATH = Path("docs/reference/operators.md")
_HEAD = f"""\
# Supported operators

Made from the code by `python -m npusim.frontends.docs`; do not edit.

ONNX models of operator set {FIRST_OPSET} up to the newest that the installed `onnx` package knows are read. Those older
than {OLDEST_OPSET} go through that package's version converter first, which needs every input's shape and refuses some
operators. Each operator becomes one or several of the kinds of the graph language (last table). Whatever is not here is
refused, together with every other problem of the model, by node name and reason. A model whose operands have types that
the definition of their operator does not allow is damaged.

- Types: float32, float16, bfloat16, int8, uint8, int16, uint16, int32, int64, bool. Values of type float64, uint32 and
  uint64 are taken where they are constants and vanish by constant folding; 4- and 2-bit integers as constants only.
- Shapes are static: what a model leaves open is taken from the arrays of a run, or from `--input-shape`. Operands that
  decide shapes are constants, or are computed from shapes, constants, and inputs of at most {MOST_DECIDING} elements,
  whose values come from the arrays of a run or from `--bind`. The host computes such operands before the run, which is
  reported as its work; the inputs stay inputs of the program, except integers and booleans that nothing else reads.
- An operator that is not in the table but that the `onnx` package itself defines by other operators is expanded into
  its definition: Attention, RotaryEmbedding, AffineGrid, CenterCropPad, MeanVarianceNormalization, the losses, ...
- Functions of the model are expanded in place. `If` is taken when its condition is known; `Loop` and `Scan` are
  unrolled, up to {MAX_ITERATIONS} times, when trip counts and conditions are. Sequences and optionals are refused.
- What a model in few words asks for - values computed from constants, nodes of functions and loops, instructions - has
  a budget on the host, which follows from the device's memory or from `host.compile_bytes` in its description.
- External data is read from regular files in the model's own directory: the bytes that tensors name, no more than the
  device's memory holds.
"""


def _rows(domain: str) -> list[str]:
    by_name: dict[str, list[OperatorEntry]] = {}
    for entry in entries():
        if entry.domain == domain:
            by_name.setdefault(entry.op_type, []).append(entry)
    rows = ["| operator | limits |", "|---|---|"]
    for name, versions in by_name.items():
        limits = [
            (f"from version {entry.since}: " if entry.since > 1 else "") + limit
            for entry in versions
            for limit in entry.limits
        ]
        rows.append(f"| {name} | {'; '.join(limits)} |")
    return rows


def _kinds() -> list[str]:
    rows = ["| kind | operands | attributes | meaning | unit | constraints |", "|---|---|---|---|---|---|"]
    for name, kind in REGISTRY.items():
        attributes = [key if default is REQUIRED else f"{key}={default}" for key, default in kind.attrs.items()]
        constraints = [" ".join((constraint.__doc__ or "").split()) for constraint in kind.constraints]
        unit = kind.unit.name.lower() if isinstance(kind.unit, Unit) else "vector or scalar"
        cells = (name, kind.operands, ", ".join(attributes), kind.meaning, unit, "; ".join(constraints))
        rows.append("| " + " | ".join(cells).replace("*", "\\*") + " |")
    return rows


def render() -> str:
    """The whole page."""
    parts = [_HEAD, "## ai.onnx\n", *_rows(""), "\n## com.microsoft\n", *_rows("com.microsoft")]
    parts += ["\n## Kinds of the graph language\n", *_kinds(), ""]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page; exit code 1 if it is out of date."""
    return write_or_check("npusim.frontends.docs", __doc__, DEFAULT_PATH, render, arguments)


if __name__ == "__main__":
    sys.exit(main())
