"""Like memory_of_uses, for clients of the C libraries: ``python -m tests.support.memory_of_clients USE MODEL
COUNT``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hal import abi
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1
from tests.support.memory_of_uses import BATCH, FEATURES, HIDDEN, SHAPE, STEPS, Use, main, model_of
from tests.support.nnapi import c_api
from tests.support.onnxifi.c_library import CDoor


def _onnxifi(model: str) -> Use:
    """Clients of the ONNXIFI C library, each with a new backend."""
    proto = model_of(model)
    source, x = proto.SerializeToString(), np.ones(SHAPE, np.float32)
    [output] = proto.graph.output
    shape = [each.dim_value for each in output.type.tensor_type.shape.dim]
    door = CDoor(abi.LIBRARIES[0])

    def use() -> None:
        y = np.zeros(shape, np.float32)
        _, ids, _ = door.onnxGetBackendIDs(64)
        status, backend = door.onnxInitBackend(ids[0])
        _, graph = door.onnxInitGraph(backend, None, source)
        _, before = door.onnxInitEvent(backend)
        given, wanted = TensorDescriptorV1.of("x", x), TensorDescriptorV1.of(output.name, y)
        assert (status, door.onnxSetGraphIO(graph, [given], [wanted])) == (0, 0)
        after = MemoryFenceV1()
        assert door.onnxRunGraph(graph, MemoryFenceV1(before), after) == 0
        assert (door.onnxSignalEvent(before), door.onnxWaitEvent(after.event)) == (0, 0)
        made = [(door.onnxReleaseEvent, before), (door.onnxReleaseEvent, after.event), (door.onnxReleaseGraph, graph)]
        made += [(door.onnxReleaseBackend, backend), *((door.onnxReleaseBackendID, each) for each in ids)]
        assert [release(handle) for release, handle in made] == [0] * len(made)
        assert np.any(y)

    return use


def _nnapi(model: str) -> Use:
    """Clients of the NNAPI C library, each with a new model and compilation."""
    api = c_api.Api()

    def use() -> None:
        maker = c_api.ModelMaker(api)
        x_shape, y_shape, x, y = NNAPI_MODELS[model](maker)
        made = maker.finish([x], [y])
        compilation = c_api.compiled(api, made)
        execution = api.make("Execution_create", compilation)
        given, result = np.ones(x_shape, np.float32), np.zeros(y_shape, np.float32)
        c_api.set_inputs(api, execution, given)
        api.ok("Execution_setOutput", execution, 0, None, c_api.address(result), result.nbytes)
        api.ok("Execution_compute", execution)
        api.Execution_free(execution)
        api.Compilation_free(compilation)
        api.Model_free(made)
        assert np.any(result)

    return use


Built = tuple[tuple[int, ...], tuple[int, ...], int, int]
"""Shapes and operand indices of input and output."""
Model = Callable[[c_api.ModelMaker], Built]


def _weights(maker: c_api.ModelMaker, *shape: int) -> int:
    return maker.constant("TENSOR_FLOAT32", np.full(shape, 0.1, np.float32))


def _nnapi_windows(
    kind: str, weights: tuple[int, ...], y_shape: tuple[int, ...], *numbers: int
) -> Callable[..., Built]:
    def build(maker: c_api.ModelMaker) -> Built:
        x_shape = (1, 16, 16, 8)
        x, w, b = maker.operand("TENSOR_FLOAT32", x_shape), _weights(maker, *weights), _weights(maker, y_shape[-1])
        inputs = [x, w, b, *(maker.i32(number) for number in numbers)]
        y = maker.operand("TENSOR_FLOAT32", y_shape)
        maker.add(kind, inputs, [y])
        return x_shape, y_shape, x, y

    return build


def _nnapi_transposed(maker: c_api.ModelMaker) -> Built:
    x_shape, y_shape = (1, 16, 16, 8), (1, 32, 32, 4)
    x, w, b = maker.operand("TENSOR_FLOAT32", x_shape), _weights(maker, 4, 4, 4, 8), _weights(maker, 4)
    shape = maker.constant("TENSOR_INT32", np.array(y_shape, np.int32))
    rest = [maker.i32(number) for number in (1, 2, 2, 0)]  # padding "same", strides, no activation
    y = maker.operand("TENSOR_FLOAT32", y_shape)
    maker.add("TRANSPOSE_CONV_2D", [x, w, b, shape, *rest, maker.constant("BOOL", np.bool_(False))], [y])
    return x_shape, y_shape, x, y


def _nnapi_lstm(maker: c_api.ModelMaker) -> Built:
    x_shape, y_shape = (STEPS, BATCH, FEATURES), (STEPS, BATCH, HIDDEN)
    x = maker.operand("TENSOR_FLOAT32", x_shape)

    def none() -> int:
        index = maker.operand("TENSOR_FLOAT32", (0,))
        maker.api.ok("Model_setOperandValue", maker.model, index, None, 0)
        return index

    inputs = [x, *(_weights(maker, HIDDEN, width) for width in (FEATURES, HIDDEN) for _ in range(4))]
    inputs += [*(none() for _ in range(3)), *(_weights(maker, HIDDEN) for _ in range(4)), none(), none()]
    inputs += [_weights(maker, BATCH, HIDDEN), _weights(maker, BATCH, HIDDEN), maker.i32(4)]  # states; 4: tanh
    inputs += [maker.constant("FLOAT32", np.float32(0)) for _ in range(2)]
    inputs += [maker.constant("BOOL", np.bool_(True)), *(none() for _ in range(4))]  # time first; no normalisation
    y = maker.operand("TENSOR_FLOAT32", y_shape)
    maker.add("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y])
    return x_shape, y_shape, x, y


# Padding 1 ("same"), strides, for depthwise the multiplier, no activation.
NNAPI_MODELS: dict[str, Model] = {
    "conv": _nnapi_windows("CONV_2D", (8, 3, 3, 8), (1, 16, 16, 8), 1, 1, 1, 0),
    "depthwise": _nnapi_windows("DEPTHWISE_CONV_2D", (1, 3, 3, 8), (1, 16, 16, 8), 1, 1, 1, 1, 0),
    "lstm": _nnapi_lstm,
    "transposed": _nnapi_transposed,
}
USES = {"onnxifi": _onnxifi, "nnapi": _nnapi}

if __name__ == "__main__":
    main(USES)
