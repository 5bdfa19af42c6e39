"""The number of operands and the attributes of a node, from the operator definitions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import AttributeProto

from npusim.frontends.onnx.schema import schema_of as definition


@dataclass(frozen=True, slots=True)
class Schema:
    """``attributes``: type (of AttributeProto) by name; ``required``: mandatory attributes."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: Mapping[str, int]
    required: frozenset[str]


@functools.lru_cache(maxsize=4096)
def schema_of(domain: str, op_type: str, version: int) -> Schema | None:
    """Return the definition of an operator in a version of its domain, or None."""
    found = definition(domain, op_type, version)
    if found is None or found.deprecated:
        return None
    return Schema(
        (found.min_input, found.max_input),
        (found.min_output, found.max_output),
        {name: _number(attribute.type) for name, attribute in found.attributes.items()},
        frozenset(name for name, attribute in found.attributes.items() if attribute.required),
    )


def _number(kind: object) -> int:
    """Return AttributeProto's number for a value of the schema's enumeration, which its stub does not declare as
    one."""
    number: int = AttributeProto.AttributeType.Value(str(kind).rpartition(".")[2])
    return number
