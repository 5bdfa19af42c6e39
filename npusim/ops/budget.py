"""How much it may take to make a program of a model: a few hundred bytes of model can ask for years and terabytes."""

from __future__ import annotations

from npusim.errors import CompileError
from npusim.hw.config import Config
from npusim.polling import poll

MOST_BYTES = 256 << 20
"""The budget without a device, and that of large devices unless their descriptions say more."""
SHARE = 8
"""The budget is the device's memory divided by this: what is computed while a model is compiled becomes constants."""
STEP_BYTES = 256
"""What one step takes: an instruction with its waits, about."""
OPERATOR_STEPS = 8
"""Steps that a node or an operator counts for; most become as many instructions."""
COPIES = 3
"""Bytes that are only copied for each byte that counts: nothing is computed of them."""
OWN_BYTES = 4
"""Bytes of values that may be computed for every byte of weights that a model brings."""
OWN_OPERATORS = 64
"""Operators that every node that a model brings may become, and every operator of a graph in instructions."""

_LONG = 120
"""Characters of a name that an error shows; in functions within functions they have thousands."""


class Budget:
    """Bytes of values and steps that one import, or one compilation, may still take. ``allowed``: bytes in all.

    Counted is what a model asks for in few words: values that are computed from constants, nodes of functions, branches
    and loops, operators, instructions. For what it brings itself, it is granted more.
    """

    def __init__(self, allowed: int = MOST_BYTES) -> None:
        self.allowed = allowed
        self.steps = allowed // STEP_BYTES
        """Steps that are left."""
        self._bytes = allowed

    @classmethod
    def of(cls, config: Config) -> Budget:
        """What the description of a device allows."""
        return cls(config.host.compile_bytes or min(config.dram.bytes // SHARE, MOST_BYTES))

    def grant(self, *, nbytes: int = 0, operators: int = 0) -> None:
        """The model has so many bytes of weights, or so many nodes."""
        self._bytes += nbytes * OWN_BYTES
        self.steps += operators * OWN_OPERATORS * OPERATOR_STEPS

    def take_bytes(self, count: int, where: str) -> None:
        """Before so many bytes are computed. Raises CompileError."""
        poll()
        if count > self._bytes:
            self._refuse(where, f"{count} bytes for values", f"{self._bytes} bytes")
        self._bytes -= count

    def take_steps(self, count: int, where: str) -> None:
        """Before so many steps. Raises CompileError."""
        self.expect_steps(count, where)
        self.steps -= count

    def expect_steps(self, count: int, where: str) -> None:
        """So many steps will be taken from here on. Raises CompileError now rather than when they have been."""
        poll()
        if count > self.steps:
            self._refuse(where, f"{count} steps", f"{self.steps} steps")

    def _refuse(self, where: str, wanted: str, left: str) -> None:
        if len(where) > _LONG:  # the call that a reader of the model knows, and where it has led to
            where = f"{where[: _LONG // 2]}...{where[-_LONG // 2 :]}"
        raise CompileError(
            f"{where}: wants {wanted} while the model is compiled; {left} are left of a budget of {self.allowed} "
            f"bytes, where a step counts as {STEP_BYTES} (host.compile_bytes allows more)"
        )
