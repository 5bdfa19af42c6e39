"""State: tensors that stay on the device between runs, such as the caches of a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.dtypes import dtype_of, from_storage, to_storage
from npusim.errors import InputError, UsageError
from npusim.program import Binding, Program
from npusim.runtime.dispatcher import Dispatcher
from npusim.runtime.request import DeviceBuffer
from npusim.turns import serialised

Array = npt.NDArray[Any]


class _Value:
    """One tensor: an array until a program has a place for it, then in device memory at ``place``."""

    def __init__(self, array: Array) -> None:
        self.dtype = dtype_of(array)
        self.shape: tuple[int, ...] = array.shape
        self.array: Array | None = to_storage(array)
        self.buffer: DeviceBuffer | None = None
        self.place: Binding | None = None


class State:
    """Tensors that stay on the device, by the names of the inputs that they replace; made by :meth:`Session.state`.

    After each run a tensor has the value of an output: the one that its input grows to by concatenation, or the one
    named in ``feeds``; otherwise it does not change. A failed run does not change the state. Thread-safe, like its
    session.
    """

    def __init__(
        self, dispatcher: Dispatcher, arrays: Mapping[str, Any], feeds: Mapping[str, str], cache_rows: int
    ) -> None:
        self.turns = dispatcher.turns
        self.cache_rows = cache_rows
        self.feeds = dict(feeds)
        self._dispatcher = dispatcher
        self._values = {name: _Value(np.asarray(array)) for name, array in arrays.items()}
        for output, name in self.feeds.items():
            if name not in self._values:
                raise UsageError(f"feeds: output {output!r} is to become {name!r}, which the state does not have")
        if len(set(self.feeds.values())) < len(self.feeds):
            raise UsageError("feeds: two outputs are to become the same input")

    def __repr__(self) -> str:
        values = list(self._values.items())
        rows = ", ".join(f"{name} {value.dtype.label}{list(value.shape)}" for name, value in values)
        return f"<State: {rows or 'nothing'}>"

    @property
    @serialised
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The current shape of each tensor."""
        return {name: value.shape for name, value in self._values.items()}

    @serialised
    def read(self, name: str) -> Array:
        """A copy of the current value of a tensor. Raises DeviceGoneError if its device is gone."""
        value = self._value(name)
        if value.buffer is None or value.place is None:
            assert value.array is not None
            return from_storage(value.array.copy(), value.dtype)
        self._dispatcher.check_present()
        raw = self._dispatcher.driver.read(value.buffer.block.address, value.place.nbytes)
        return from_storage(value.place.elements(np.frombuffer(raw, np.uint8)).copy(), value.dtype)

    @serialised
    def close(self) -> None:
        """Release the device memory. The state cannot be used any more."""
        for value in self._values.values():
            if value.buffer is not None:
                value.buffer.release()
        self._values.clear()

    def __enter__(self) -> State:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # For the session

    def check_owner(self, dispatcher: Dispatcher) -> None:
        """Raise UsageError for a device other than that of the state."""
        if dispatcher is not self._dispatcher:
            raise UsageError("the state is on the device of another session, or of one that was closed since")

    def placeholders(self) -> dict[str, Array]:
        """Arrays with the shapes and types of the tensors but without contents or memory."""
        return {
            name: np.broadcast_to(from_storage(np.zeros((), value.dtype.storage), value.dtype), value.shape)
            for name, value in self._values.items()
        }

    def buffers(self, program: Program) -> tuple[dict[str, DeviceBuffer], dict[str, DeviceBuffer], dict[str, Binding]]:
        """For one run: the buffers of inputs and outputs, and the new values of the tensors that it changes.

        Raises InputError for a tensor that does not fit the program, UsageError for feeds that do not exist.
        """
        named = {binding.name: binding for binding in program.inputs}
        made = {binding.name: binding for binding in program.outputs}
        grown = {source.name: target for source, target in program.states}
        for output in self.feeds:
            if output not in made:
                raise UsageError(f"feeds: the program has no output {output!r}; it has {', '.join(made) or 'none'}")
        after = {name: made[output] for output, name in self.feeds.items()}
        inputs, outputs = {}, {}
        for name, value in self._values.items():
            binding = named.get(name)
            if binding is None:
                raise InputError(f"state: there is no input {name!r}; the program takes {', '.join(named) or 'none'}")
            if binding.dtype is not value.dtype or binding.shape != value.shape:
                raise InputError(
                    f"state {name!r}: is {value.dtype.label}{list(value.shape)}, the program takes {binding}"
                )
            inputs[name] = self._placed(name, value, binding, program)
            if name in grown:
                if after.get(name, grown[name]) is not grown[name]:
                    raise UsageError(f"feeds: {name!r} grows in place to output {grown[name].name!r}")
                after[name] = grown[name]
                outputs[grown[name].name] = inputs[name]
            elif name in after:
                # Another buffer, because a run reads the old value while it writes the new one.
                target = after[name]
                outputs[target.name] = self._allocate(program.region_bytes[target.region])
        return inputs, outputs, after

    def advance(self, outputs: Mapping[str, DeviceBuffer], after: Mapping[str, Binding]) -> None:
        """A run has succeeded: tensors have their new values."""
        for name, binding in after.items():
            value = self._values[name]
            if value.buffer is not outputs[binding.name]:
                assert value.buffer is not None
                value.buffer.release()
                value.buffer = outputs[binding.name]
            value.shape, value.dtype, value.place = binding.shape, binding.dtype, binding

    def _value(self, name: str) -> _Value:
        if name not in self._values:
            raise UsageError(f"the state has no {name!r}; it has {', '.join(self._values) or 'nothing'}")
        return self._values[name]

    def _placed(self, name: str, value: _Value, binding: Binding, program: Program) -> DeviceBuffer:
        """The buffer of a tensor in the layout that a program requires."""
        here = value.place is not None and value.place.held == binding.held and value.buffer is not None
        size = program.region_bytes[binding.region]
        if here and value.buffer is not None and value.buffer.nbytes >= size:
            return value.buffer
        array = to_storage(self.read(name))
        buffer = self._allocate(size)
        raw = np.zeros(binding.nbytes, np.uint8)
        binding.elements(raw)[...] = array
        if raw.size:
            self._dispatcher.driver.write(buffer.block.address, raw.data)
        if value.buffer is not None:
            value.buffer.release()
        value.array, value.buffer, value.place = None, buffer, binding
        return buffer

    def _allocate(self, nbytes: int) -> DeviceBuffer:
        return DeviceBuffer(self._dispatcher, self._dispatcher.memory.allocate(nbytes))
