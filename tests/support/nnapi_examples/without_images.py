"""Conformance examples with empty batches: the images come from ROI_ALIGN without regions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import OperandType
from tests.support.nnapi_examples.examples import Get, Record
from tests.support.nnapi_examples.structures import Example, Group, Values, added, over

PER_IMAGE = frozenset(
    {
        "ADD", "AVERAGE_POOL_2D", "BATCH_TO_SPACE_ND", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE",
        "DIV", "FLOOR", "GROUPED_CONV_2D", "INSTANCE_NORMALIZATION", "L2_NORMALIZATION", "L2_POOL_2D",
        "LOCAL_RESPONSE_NORMALIZATION", "LOGISTIC", "MAX_POOL_2D", "MUL", "PRELU", "RELU", "RELU1", "RELU6",
        "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "SOFTMAX", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "SUB", "TANH",
    }
)  # fmt: skip
"""Operations that give an empty result for an empty batch."""

_BOXES = {"TENSOR_FLOAT32": "TENSOR_FLOAT32", "TENSOR_FLOAT16": "TENSOR_FLOAT16"}
_NUMBERS = {"TENSOR_FLOAT16": "FLOAT16"}


def empty(rec: Record, get: Get) -> Example | None:
    """Give all operands like the first input (including it) an empty batch; the output is then empty, too."""
    operations = rec["main"]["operations"]
    if len(operations) != 1 or operations[0]["type"] not in PER_IMAGE:
        return None
    rec = copy.deepcopy(rec)
    main = rec["main"]
    [operation] = main["operations"]
    images = operation["inputs"][:1] if "CONV_2D" in operation["type"] else operation["inputs"]
    first = main["operands"][images[0]]
    alike = [i for i in images if (o := main["operands"][i])["dims"] == first["dims"] and o["type"] in _IMAGES]
    if len(first["dims"]) != 4 or not alike or not set(alike) <= set(main["inputs"]):
        return None
    values: Values = {}
    for index in dict.fromkeys(alike):
        main["operations"][-1:-1] = _nothing(main, index, values)
    main["inputs"] = [index for index in main["inputs"] if index not in alike]
    for index in operation["outputs"]:
        main["operands"][index]["dims"][0] = 0
        values["main", index] = None
    return rec, over(get, values)


_IMAGES = ("TENSOR_FLOAT32", "TENSOR_FLOAT16", "TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED")


def _nothing(main: Group, index: int, values: Values) -> list[dict[str, Any]]:
    """Return operations that make operand ``index`` empty: regions of an image for which no score is high enough."""
    image = main["operands"][index]
    kind = image["type"]
    box, number = _BOXES.get(kind, "TENSOR_QUANT16_ASYMM"), _NUMBERS.get(kind, "FLOAT32")
    coordinates = {"type": box, "scale": 0.125 if "QUANT" in box else 0.0}
    levels = {key: image[key] for key in ("type", "scale", "zeroPoint")}

    def constant(numbers: object, **fields: Any) -> int:
        array = np.asarray(numbers, STORAGE[OperandType[fields["type"]]])
        made = added(main, **{"dims": list(array.shape), **fields})
        values["main", made] = array.reshape(-1)
        return made

    def temporary(*dims: int, consumers: int = 0, **fields: Any) -> int:
        return added(main, lifetime="TEMPORARY_VARIABLE", dims=list(dims), consumers=consumers, **fields)

    _, height, width, channels = image["dims"]
    given = [
        constant(np.zeros((1, 2)), **levels), constant(np.zeros((1, 8)), **coordinates),
        constant([0], type="TENSOR_INT32"), constant(1000, type=number), constant(-1, type="INT32"),
        constant(0, type="INT32"), *(constant(0.5, type=number) for _ in range(3)),
    ]  # fmt: skip
    results = [
        temporary(0, **levels), temporary(0, 4, consumers=1, **coordinates), temporary(0, type="TENSOR_INT32"),
        temporary(0, consumers=1, type="TENSOR_INT32"),
    ]  # fmt: skip
    regions = [
        constant(np.zeros((1, 1, 1, channels)), **levels), results[1], results[3], constant(height, type="INT32"),
        constant(width, type="INT32"), constant(1, type=number), constant(1, type=number), constant(1, type="INT32"),
        constant(1, type="INT32"), constant(False, type="BOOL"),
    ]  # fmt: skip
    image["lifetime"], image["dims"] = "TEMPORARY_VARIABLE", [0, height, width, channels]
    return [
        {"type": "BOX_WITH_NMS_LIMIT", "inputs": given, "outputs": results},
        {"type": "ROI_ALIGN", "inputs": regions, "outputs": [index]},
    ]
