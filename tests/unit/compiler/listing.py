"""What a compiler makes of a graph, as text to be compared; ``python -m tests.unit.compiler.listing`` writes it anew.

The difference in version control then shows what a change to the compiler did to every kind of operator.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from npusim.compiler.pipeline import compile_graph
from npusim.hw.config import Config
from npusim.isa.base import decode
from npusim.isa.disassemble import disassemble
from npusim.program import Program
from tests.support.graphs.every_kind import CASES

FOLDER = Path(__file__).with_name("listings")


def listing(program: Program, config: Config) -> str:
    """Sizes, the constants' checksum, and one line for each command."""
    constants = np.zeros(program.constants.nbytes, np.uint8)
    program.constants.fill(constants)
    regions = " ".join(f"{index}:{size}" for index, size in enumerate(program.region_bytes) if size)
    bindings = " ".join(
        f"{b.name}={b.region}{list(b.shape)}{b.dtype.label}" for b in (*program.inputs, *program.outputs)
    )
    macs = " ".join(f"{dtype.label}:{count}" for dtype, count in program.macs)
    head = [f"regions {regions}", bindings, f"constants {zlib.crc32(constants):08x}", f"macs {macs}"]
    return "\n".join([*head, *disassemble(decode(program.code), [entry.kind for entry in program.ops]), ""])


def on_record(name: str) -> str:
    """The listing of a case as it is kept."""
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def main() -> None:
    """Replace all listings."""
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name, case in CASES.items():
        text = listing(compile_graph(case.graph()[0], case.config), case.config)
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
