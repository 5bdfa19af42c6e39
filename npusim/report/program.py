"""The contents of a compiled program as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npusim.isa.dma import expanded_bytes
from npusim.report.format import capacity, counted, facts, quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npusim.graph import HostPart
    from npusim.program import Binding, Program


def text(program: Program, where: str) -> str:
    """A summary in a few lines: sizes, inputs, outputs."""
    sizes = program.describe()
    rows = [
        (
            "program",
            f"{counted(sizes['commands'], 'instruction')} for {counted(len(program.ops), 'operator')}, "
            f"{capacity(sizes['code_bytes'])} of code",
        ),
        ("constants", capacity(sizes["constant_bytes"])),
        *_streams(program),
        ("scratch", capacity(sizes["scratch_bytes"])),
        *([("residents", f"{capacity(program.resident_bytes)} of weights in SRAM")] if program.resident_bytes else []),
        ("inputs", _bindings(program.inputs)),
        ("outputs", _bindings(program.outputs)),
        *((f"{name} is", value) for name, value in program.bound),
        *([("host work", f"{host_work(program.host)}, before each run")] if program.host.work else []),
        *(
            (f"{grown.name}", f"{old.name} grown in place, capacity {old.capacity} rows")
            for old, grown in program.states
        ),
    ]
    return "\n".join([f"{program.name} for {program.config_name}: {where}", "", *facts(rows)])


def host_work(part: HostPart) -> str:
    """The amount of work of the host as text."""
    return f"{counted(len(part.work), 'operator')}, {quantity(part.macs, 'MAC')}"


def as_json(program: Program) -> dict[str, Any]:
    """Sizes in bytes, inputs and outputs."""
    read, made = expanded_bytes(program.code)
    return {
        **program.describe(),
        **({"streams": {"bytes": read, "expanded_bytes": made}} if made else {}),
        "operators": len(program.ops),
        "inputs": [_binding(binding) for binding in program.inputs],
        "outputs": [_binding(binding) for binding in program.outputs],
        "bound": dict(program.bound),
        **({"host_work": [work._asdict() for work in program.host.work]} if program.host.work else {}),
        "states": [
            {"input": old.name, "output": grown.name, "axis": old.axis, "rows": old.capacity}
            for old, grown in program.states
        ],
    }


def _streams(program: Program) -> list[tuple[str, str]]:
    read, made = expanded_bytes(program.code)
    ratio = f"{capacity(read)} are loaded for {capacity(made)} of weights, ratio {read / made:.3f}" if made else ""
    return [("streams", ratio)] if made else []


def _bindings(bindings: Sequence[Binding]) -> str:
    return ", ".join(map(str, bindings)) or "none"


def _binding(binding: Binding) -> dict[str, Any]:
    return {"name": binding.name, "shape": list(binding.shape), "type": binding.dtype.label}
