"""Limits for compiling a model, because a model of a few hundred bytes can require years and terabytes."""

from __future__ import annotations

from npusim.errors import CompileError
from npusim.hw.config import Config
from npusim.polling import poll

MOST_BYTES = 256 << 20
"""The budget without a device, and the largest default budget."""
SHARE = 8
"""The default budget is the DRAM size divided by this, because values computed by the compiler become constants."""
STEP_BYTES = 256
"""Memory of one step, about an instruction with its waits."""
OPERATOR_STEPS = 8
"""Steps counted per node or operator; most become as many instructions."""
COPIES = 3
"""Copied bytes that count as one byte, because nothing is computed from them."""
OWN_BYTES = 4
"""Additional bytes of values allowed per byte of weights in the model."""
OWN_OPERATORS = 64
"""Additional operators allowed per node of the model, and per operator of a graph in instructions."""

_LONG = 120
"""Most characters of a name in an error; names in nested functions can have thousands."""


class Budget:
    """Remaining bytes of values and steps of one import or compilation. ``allowed``: bytes in total.

    It counts expansion: values computed from constants, nodes of functions, branches and loops, operators,
    instructions. Data and nodes of the model itself add to the budget.
    """

    def __init__(self, allowed: int = MOST_BYTES) -> None:
        self.allowed = allowed
        self.steps = allowed // STEP_BYTES
        """Remaining steps."""
        self._bytes = allowed

    @classmethod
    def of(cls, config: Config) -> Budget:
        """The budget for a device."""
        return cls(config.host.compile_bytes or min(config.dram.bytes // SHARE, MOST_BYTES))

    def grant(self, *, nbytes: int = 0, operators: int = 0) -> None:
        """Add to the budget for weights of ``nbytes`` bytes, or for nodes of the model."""
        self._bytes += nbytes * OWN_BYTES
        self.steps += operators * OWN_OPERATORS * OPERATOR_STEPS

    def take_bytes(self, count: int, where: str) -> None:
        """Count bytes before they are computed. Raises CompileError."""
        poll()
        if count > self._bytes:
            self._refuse(where, f"{count} bytes for values", f"{self._bytes} bytes")
        self._bytes -= count

    def take_steps(self, count: int, where: str) -> None:
        """Count steps before they are done. Raises CompileError."""
        self.expect_steps(count, where)
        self.steps -= count

    def expect_steps(self, count: int, where: str) -> None:
        """Check that ``count`` steps are left, to raise CompileError before they are done."""
        poll()
        if count > self.steps:
            self._refuse(where, f"{count} steps", f"{self.steps} steps")

    def _refuse(self, where: str, wanted: str, left: str) -> None:
        if len(where) > _LONG:  # keep the call that the user knows and the innermost one
            where = f"{where[: _LONG // 2]}...{where[-_LONG // 2 :]}"
        raise CompileError(
            f"{where}: wants {wanted} while the model is compiled; {left} are left of a budget of {self.allowed} "
            f"bytes, where a step counts as {STEP_BYTES} (host.compile_bytes allows more)"
        )
