"""Descriptors at the limits of what is allowed, and quantisation with one pair of parameters."""

from __future__ import annotations

import pytest

from hal.onnxifi.constants import DataType, MemoryType
from hal.onnxifi.descriptor import Descriptor
from hal.onnxifi.quantization import quantization_of
from hal.onnxifi.status import OnnxifiError, Status
from hal.onnxifi.tensors import check_descriptor
from npusim.ops.build import MAX_ELEMENTS

FLOAT = Descriptor("x", DataType.FLOAT32, MemoryType.CPU, (2, 3), 4096)


def refused(descriptor: Descriptor, status: Status, words: str) -> None:
    with pytest.raises(OnnxifiError, match=words) as caught:
        check_descriptor(descriptor)
    assert caught.value.status is status


def test_a_descriptor_has_up_to_64_dimensions_and_as_many_elements_as_a_device_can_count() -> None:
    for shape in ((), (1,), (1,) * 64, (MAX_ELEMENTS,), (MAX_ELEMENTS // 2, 2)):
        check_descriptor(FLOAT._replace(shape=shape))
    for shape in ((1,) * 65, (0,), (3, 0, 2), None):
        refused(FLOAT._replace(shape=shape), Status.INVALID_SHAPE, "every dimension must be > 0")
    refused(FLOAT._replace(shape=(MAX_ELEMENTS + 1,)), Status.UNSUPPORTED_SHAPE, "has more than")


def test_types_memories_and_places_that_there_are() -> None:
    for kind in set(DataType) - {DataType.UNDEFINED}:
        check_descriptor(FLOAT._replace(data_type=kind))
    for kind in (0, 8, 17):
        refused(FLOAT._replace(data_type=kind), Status.INVALID_DATATYPE, f"there is no data type {kind}")
    refused(FLOAT._replace(memory_type=3), Status.INVALID_MEMORY_TYPE, "there is no memory type 3")
    refused(FLOAT._replace(memory_type=1), Status.UNSUPPORTED_MEMORY_TYPE, "CUDA_BUFFER is not supported, CPU is")
    refused(FLOAT._replace(buffer=0), Status.INVALID_MEMORY_LOCATION, "the buffer must not be NULL")


def test_one_pair_of_parameters_has_no_axis() -> None:
    """The axis is ignored; with two pairs it counts."""
    descriptor = FLOAT._replace(
        data_type=DataType.UINT8, quantization_axis=99, quantization_params=1, scales=(0.5,), biases=(255,)
    )
    found = quantization_of(descriptor)
    assert found is not None
    assert (found.axis, found.scales, found.biases) == (0, (0.5,), (255,))
    scales, biases = found.arrays((2, 3))
    assert (scales.shape, biases.shape, float(scales), int(biases)) == ((), (), 0.5, 255)
    pairs = descriptor._replace(quantization_axis=0, quantization_params=2, scales=(0.5, 2.0), biases=(0, 7))
    found = quantization_of(pairs._replace(shape=(2, 3)))
    assert found is not None
    assert [array.tolist() for array in found.arrays((2, 3))] == [[[0.5], [2.0]], [[0], [7]]]
    along = quantization_of(pairs._replace(quantization_axis=1, shape=(2, 4)))
    assert along is not None
    assert along.axis == 1
    assert along.arrays((2, 4))[0].tolist() == [[0.5, 0.5, 2.0, 2.0]]
    assert quantization_of(FLOAT) is None


@pytest.mark.parametrize(("kind", "least", "most"), [(DataType.UINT8, 0, 255), (DataType.INT8, -128, 127)])
def test_biases_are_values_of_their_type(kind: DataType, least: int, most: int) -> None:
    plain = FLOAT._replace(data_type=kind, quantization_params=1, scales=(1.0,))
    for bias in (least, most):
        found = quantization_of(plain._replace(biases=(bias,)))
        assert found is not None
        assert found.biases == (bias,)
    for bias in (least - 1, most + 1):
        with pytest.raises(OnnxifiError, match="biases must be values of") as caught:
            quantization_of(plain._replace(biases=(bias,)))
        assert caught.value.status is Status.INVALID_DATATYPE
