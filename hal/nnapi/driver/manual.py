"""The manual's table of operations, made from their declarations.

``python -m hal.nnapi.driver.manual`` writes docs/reference/nnapi-operations.md; with ``--check`` it only says whether
that file is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from npusim.pages import write_or_check

from .. import extensions
from ..operations import REGISTRY, Definition
from ..operations.signature import operation_name, type_name
from ..operations.versions import operation_version
from ..operations.view import SCALARS
from ..types import OperandType

DEFAULT_PATH = Path("docs/reference/nnapi-operations.md")
COLUMNS = {
    "float32": OperandType.TENSOR_FLOAT32,
    "float16": OperandType.TENSOR_FLOAT16,
    "quant8": OperandType.TENSOR_QUANT8_ASYMM,
    "quant8 signed": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "int32": OperandType.TENSOR_INT32,
    "bool8": OperandType.TENSOR_BOOL8,
}
_HEAD = """\
# NNAPI operations

Made from the code by `python -m hal.nnapi.driver.manual`; do not edit.

{count} operations of HAL 1.3, for a device with all units. `device.explain(model)` says for a model and a device what
is not supported, and why. A column says that the first operand or the result may be of the type; *others* names what
else may be among the operands. Relaxed float32 is computed in float32. What else operands must be is in the
[rules](nnapi-validation.md).
"""


def types_of(definition: Definition) -> tuple[set[int], set[int]]:
    """(types of the first input and the first output, types of all operands) in all signatures; tensors only."""
    if not isinstance(definition.signatures, frozenset):
        return set(), set()
    first = {side[0] for form in definition.signatures for side in form if side}
    every = {kind for form in definition.signatures for side in form for kind in side}
    return first - SCALARS, every - SCALARS


def render() -> str:
    """The whole page."""
    lines = [_HEAD.format(count=len(REGISTRY)), f"| operation | since | {' | '.join(COLUMNS)} | others |"]
    lines.append(f"|---|---|{'---|' * len(COLUMNS)}---|")
    lines += [_row(kind, REGISTRY[kind]) for kind in sorted(REGISTRY)]
    return "\n".join([*lines, "", "## Extensions", "", *_extensions(), ""])


def _row(kind: int, definition: Definition) -> str:
    first, every = types_of(definition)
    name = f"| {operation_name(kind)} | {operation_version(kind)} |"
    if not isinstance(definition.signatures, frozenset):
        return f"{name}{' |' * len(COLUMNS)} {' '.join((definition.signatures.__doc__ or '').split())} |"
    marks = " | ".join("yes" if column in first else "" for column in COLUMNS.values())
    others = ", ".join(type_name(kind) for kind in sorted(every - set(COLUMNS.values())))
    return f"{name} {marks} | {others} |".replace("  ", " ")


def _extensions() -> list[str]:
    return [
        f"- `{extension.name}`: {', '.join(kind.name for kind in extension.operand_types.values())}; "
        f"{len(extension.operations)} operation{'s' if len(extension.operations) > 1 else ''}"
        for extension in extensions.registered()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page; exit code 1 if it is out of date."""
    return write_or_check("hal.nnapi.driver.manual", __doc__, DEFAULT_PATH, render, arguments)


if __name__ == "__main__":
    sys.exit(main())
