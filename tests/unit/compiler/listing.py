"""Program listings for comparison in version control.

    python -m tests.unit.compiler.listing                 writes the recorded file again
    python -m tests.unit.compiler.listing conv_deep       prints the program of one case

The diff of the recorded file shows what a compiler change did to each kind of operator: the number of instructions of
each kind, the number of waits, and whether anything else in the program differs. For details, compare the printed
programs.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

from npusim.compiler.pipeline import compile_graph
from npusim.hw.config import Config
from npusim.isa.base import decode
from npusim.isa.disassemble import disassemble
from npusim.program import Program
from tests.support.graphs.every_kind import CASES

PATH = Path(__file__).with_name("listings.txt")
WHOLE = ("conv_quantised", "conv_on_two_cores")
"""Cases whose complete listing is recorded."""


def listing(program: Program, config: Config) -> str:
    """Return the region sizes, the checksum of the constants, and one line per command."""
    constants = np.zeros(program.constants.nbytes, np.uint8)
    program.constants.fill(constants)
    regions = " ".join(f"{index}:{size}" for index, size in enumerate(program.region_bytes) if size)
    bindings = " ".join(
        f"{b.name}={b.region}{list(b.shape)}{b.dtype.label}" for b in (*program.inputs, *program.outputs)
    )
    macs = " ".join(f"{dtype.label}:{count}" for dtype, count in program.macs)
    head = [f"regions {regions}", bindings, f"constants {zlib.crc32(constants):08x}", f"macs {macs}"]
    return "\n".join([*head, *disassemble(decode(program.code), [entry.kind for entry in program.ops]), ""])


def compiled(name: str) -> Program:
    """Compile a case."""
    case = CASES[name]
    return compile_graph(case.graph()[0], case.config)


def on_record(name: str, program: Program) -> str:
    """Return the recorded text of a case: the instruction count per kind and a checksum of the listing; for
    :data:`WHOLE`, the listing itself."""
    whole = listing(program, CASES[name].config)
    commands = list(decode(program.code))
    counts = Counter(command.instruction.mnemonic for command in commands)
    kinds = " ".join(f"{mnemonic}:{count}" for mnemonic, count in counts.items())
    waits = sum(len(command.waits) for command in commands)
    line = f"{name}: {kinds}; {waits} waits, {len(program.code)} bytes, {zlib.crc32(whole.encode()):08x}\n"
    return line + (whole if name in WHOLE else "")


def main() -> None:
    """Entry point of the command line."""
    if names := sys.argv[1:]:
        sys.stdout.writelines(listing(compiled(name), CASES[name].config) for name in names)
    else:
        PATH.write_text("".join(on_record(name, compiled(name)) for name in CASES), encoding="utf-8")


if __name__ == "__main__":
    main()
