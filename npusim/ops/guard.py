"""Checks that inputs give the decisions for which a graph was built, by computing the decisions again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from npusim.dtypes import to_storage, value_text
from npusim.errors import InputError
from npusim.graph import Graph
from npusim.ops import reference
from npusim.ops.base import Array


@dataclass(slots=True, eq=False)
class Guard:
    """``graph`` computes the decided values in order. ``what`` describes them; ``decided`` has them as text.

    ``fixed``: values of graph inputs that the program does not take.
    """

    graph: Graph
    what: tuple[str, ...]
    decided: tuple[str, ...]
    fixed: Mapping[str, Array]
    _last: dict[str, bytes] = field(default_factory=dict)
    """The inputs that passed last, because most runs follow a compilation for the same inputs."""

    def __call__(self, inputs: Mapping[str, Array]) -> None:
        """Raise InputError unless the inputs, in storage form, give the same decisions."""
        given = {}
        for tensor in self.graph.inputs:
            value = self.fixed.get(tensor.name, inputs.get(tensor.name))
            if value is None:
                raise InputError(f"input {tensor.name!r} determines the program: it must be given as an array")
            given[tensor.name] = to_storage(np.asarray(value))
        seen = {name: value.tobytes() for name, value in given.items()}
        if seen == self._last:
            return
        names = ", ".join(repr(tensor.name) for tensor in self.graph.inputs if tensor.name not in self.fixed)
        advice = f"with these values of {names}; compile the model for them (inputs=...), or run the model itself"
        try:
            values = reference.run(self.graph, given)
        except (
            ArithmeticError,
            LookupError,
            ValueError,
        ) as error:  # such as an index of another branch
            raise InputError(f"{self.what[-1]} cannot be computed {advice}: {error}") from None
        for what, was, tensor in zip(self.what, self.decided, self.graph.outputs, strict=True):
            # Later decisions may depend on this one, and need not exist in the program for these inputs.
            if (now := value_text(values[tensor.name])) != was:
                raise InputError(f"{what} is {was} in this program, and {now} {advice}")
        self._last = seen
