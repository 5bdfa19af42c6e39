"""The manual's list of the rules that models are held to, made from the rules themselves.

``python -m hal.nnapi.validation.docs`` writes docs/reference/nnapi-validation.md; with ``--check`` it only says whether
that file is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from npusim.pages import write_or_check

from ..operations import REGISTRY
from ..operations.signature import operation_name, type_name
from ..operations.versions import V1_2, V1_3, Version
from ..types import OperandLifeTime
from . import operands, subgraph

DEFAULT_PATH = Path("docs/reference/nnapi-validation.md")
_HEAD = """\
# Rules of NNAPI models

Made from the code by `python -m hal.nnapi.validation.docs`; do not edit.

A model that breaks a rule gets INVALID_ARGUMENT from `getSupportedOperations*` and from `prepareModel*`; the log says
where, and what is wrong there. What only an execution will know - a dimension 0, an unknown rank, a value that is not a
constant - breaks no rule; if it does not fit then, the execution fails.

- Each field has its type: integers of its width, finite numbers of single precision, known enumeration members.
- Each pool has a size and an open descriptor.
- Names of extensions consist of `[a-z0-9._]`, with at least one dot; names and prefixes are unique, no prefix is 0.
- Subgraphs do not refer to each other in a circle.
- Subgraphs of IF and WHILE take and give as many operands as the operation has for them, of the same types and
  quantisation, and of the same dimensions as far as these are known; a condition is one TENSOR_BOOL8 element.
"""

_VERSIONS = """\
Models that come by HAL 1.0 to 1.2 must not use operations and operand types that came later (BOOL to
TENSOR_QUANT8_SYMM came with 1.2, TENSOR_QUANT8_ASYMM_SIGNED with 1.3), nor what operations took on later:
"""

Function = Callable[..., object]


def _text(rule: Function) -> str:
    return " ".join((rule.__doc__ or rule.__name__).split())


def _table(head: tuple[str, str], rows: Mapping[int, Sequence[Function]], name: Callable[[int], str]) -> list[str]:
    """One row for each list of rules, naming all that have it."""
    sharing: dict[tuple[str, ...], list[str]] = {}
    for key, rules in rows.items():
        sharing.setdefault(tuple(map(_text, rules)), []).append(name(key))
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return lines + [f"| {', '.join(names)} | {'; '.join(texts)} |" for texts, names in sharing.items()]


def _list(rules: Iterable[Function]) -> list[str]:
    return [f"- {_text(rule)}" for rule in rules]


def render() -> str:
    """The whole page."""
    operations = {kind: REGISTRY[kind].rules for kind in sorted(REGISTRY)}
    parts = [_HEAD, "## Operands, by type\n", *_table(("type", "rules"), operands.TYPE_RULES, type_name)]
    parts += ["\nAn operand of an extension's type:\n", *_list(operands.EXTENSION_RULES)]
    parts += ["\n## Operands, by lifetime\n"]
    parts += _table(("lifetime", "rules"), operands.LIFETIME_RULES, lambda life: OperandLifeTime(life).name)
    parts += ["\n## Subgraphs\n", *_list((subgraph.has_operands, subgraph.has_operations, *subgraph.RULES))]
    parts += ["\n## Operations\n", "Besides the types that it takes and gives:\n"]
    parts += _table(("operation", "rules"), operations, operation_name)
    parts += ["\n## Versions\n", _VERSIONS, "| operation | since 1.2 | since 1.3 |", "|---|---|---|"]
    return "\n".join([*parts, *_later(), ""])


def _later() -> list[str]:
    lines = []
    for kind in sorted(REGISTRY):
        uses: dict[Version, list[str]] = {V1_2: [], V1_3: []}
        for version, rule in REGISTRY[kind].later:
            uses[version].append(_text(rule))
        if any(uses.values()):
            lines.append(f"| {operation_name(kind)} | {' | '.join('; '.join(texts) for texts in uses.values())} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page; exit code 1 if it is out of date."""
    return write_or_check("hal.nnapi.validation.docs", __doc__, DEFAULT_PATH, render, arguments)


if __name__ == "__main__":
    sys.exit(main())
