"""The backend interface of the onnx package.

>>> import npusim.backend >>> rep = npusim.backend.prepare(onnx.load("model.onnx"), config="edge")  # doctest: +SKIP >>>
rep.run([x]).y  # doctest: +SKIP

``onnx.backend.test.BackendTest(npusim.backend, __name__)`` runs the test suite of the package. Cases that npusim does
not support are skipped with the reason.
"""

from __future__ import annotations

import contextlib
import os
import unittest
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from npusim.errors import CompileError, InputError, NeedsValueError, OpenInputsError, UnsupportedError, UsageError
from npusim.frontends.onnx.narrow_formats import FLOATS, INTEGERS
from npusim.frontends.onnx.scope import opset_imports
from npusim.frontends.onnx.signature import free_inputs
from npusim.frontends.onnx.versions import FIRST_OPSET
from npusim.hw.config import Config
from npusim.program import Program
from npusim.runtime import Session

__all__ = ["is_compatible", "is_opset_supported", "prepare", "run_model", "run_node", "supports_device"]

DEFAULT_CONFIG = "edge"
Arrays = Sequence[Any] | Mapping[str, Any] | npt.NDArray[Any]
"""Inputs: in the order of the model, None for an omitted one; by name; or a single array."""


class BackendUnsupportedError(UnsupportedError, unittest.SkipTest):
    """npusim or the device does not support the model. Test runners report it as skipped."""


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except UnsupportedError as error:
        raise BackendUnsupportedError(error.reasons) from error
    except CompileError as error:
        raise BackendUnsupportedError([("", "model", str(error))]) from error


class PreparedModel(BackendRep):
    """A model on its own device. Made by :func:`prepare`."""

    def __init__(self, model: ModelProto, config: Config | str | os.PathLike[str]) -> None:
        self._session = Session(config, cache_dir=False)
        self._source = model
        self._inputs = [value.name for value in free_inputs(model.graph)]
        self._result = namedtupledict("Outputs", [value.name for value in model.graph.output])
        self._outputs = [value.name for value in model.graph.output]
        self._program: Program | None = None
        # A model with open dimensions, or that depends on values of inputs, is compiled when it is run.
        with _refusing(), contextlib.suppress(OpenInputsError, NeedsValueError):
            self._program = self._session.compile(model, decisions=True)

    def run(self, inputs: Arrays, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, in the order of the model and by name. Raises InputError for inputs that do not fit the model.

        ``kwargs`` of the interface are ignored.
        """
        arrays = self._named(inputs)
        with _refusing():
            program = self._program or self._session.compile(self._source, inputs=arrays, decisions=True)
            outputs = self._session.run(program, arrays).outputs
        result: tuple[Any, ...] = self._result(*(self._typed(value, outputs) for value in self._source.graph.output))
        return result

    def _typed(self, value: ValueInfoProto, outputs: Mapping[str, Any]) -> Any:
        """An output. Bytes that hold elements of a narrower format become an array of its type."""
        array, code = outputs[value.name], value.type.tensor_type.elem_type
        if code in FLOATS:
            return array.view(FLOATS[code])
        return array.astype(helper.tensor_dtype_to_np_dtype(code)) if code in INTEGERS else array

    def _named(self, inputs: Arrays) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(values) > len(self._inputs):
            raise InputError(f"{len(values)} inputs are given, the model takes {', '.join(self._inputs) or 'none'}")
        return {name: value for name, value in zip(self._inputs, values, strict=False) if value is not None}


class NpusimBackend(Backend):
    """The functions of the interface, which this module also exports. ``config``: the device, as for
    :class:`Session`."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can be prepared for a device type. The simulated device counts as CPU."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False

    @classmethod
    def is_opset_supported(cls, model: ModelProto) -> tuple[bool, str]:
        """Whether the opset version of the model is supported, with the reason if not."""
        version, newest = opset_imports(model.opset_import).get("", FIRST_OPSET), onnx.defs.onnx_opset_version()
        supported = FIRST_OPSET <= version <= newest
        return supported, "" if supported else f"operator set {version} is not one of {FIRST_OPSET} to {newest}"

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be prepared, as far as this can be known without its inputs."""
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Compile a model for the device ``config``.

        Raises BackendUnsupportedError for a model that npusim or the device does not support, ModelError for a damaged
        model, UsageError for an unknown device.
        """
        if not cls.supports_device(device):
            raise UsageError(f"device must be CPU, is {device!r}")
        return PreparedModel(model, kwargs.get("config", DEFAULT_CONFIG))

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Arrays,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node. ``opset_version``: of its operator set, default the newest."""
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        arrays = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        graph = helper.make_graph(
            [node],
            "run_node",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in ((name, np.asarray(array)) for name, array in arrays.items())
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        opsets = [helper.make_opsetid(node.domain, version)]
        return cls.run_model(helper.make_model(graph, opset_imports=opsets), arrays, device, **kwargs)


is_compatible = NpusimBackend.is_compatible
is_opset_supported = NpusimBackend.is_opset_supported
prepare = NpusimBackend.prepare
run_model = NpusimBackend.run_model
run_node = NpusimBackend.run_node
supports_device = NpusimBackend.supports_device
