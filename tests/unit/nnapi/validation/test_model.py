"""Rules of a model that are independent of single operations. Each test breaks one rule of a valid model."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable

import pytest

from hal.nnapi import memory
from hal.nnapi.errors import InvalidModelError
from hal.nnapi.operations import REGISTRY
from hal.nnapi.types import (
    DataLocation,
    ExtensionNameAndPrefix,
    ExtraParams,
    Model,
    Operand,
    Operation,
    Subgraph,
    SymmPerChannelQuantParams,
)
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from hal.nnapi.validation import operands, subgraph, validate_model
from tests.support.nnapi.valid_models import (
    ALL,
    NO_ACTIVATION,
    branching,
    chain,
    circle,
    convolution,
    operand,
    quantised,
)
from tests.support.nnapi.valid_models import subgraph as make_subgraph
from tests.support.waits_and_leaks import descriptors

Break = Callable[[Model], object]


def refused(model: Model, where: str, message: str) -> None:
    with pytest.raises(InvalidModelError) as caught:
        validate_model(model)
    assert str(caught.value).startswith(where), caught.value
    assert message in caught.value.message, caught.value


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_valid_models_are_accepted_and_not_changed(make: Callable[[], Model]) -> None:
    model = make()
    before = copy.deepcopy(model)
    validate_model(model)
    assert model == before


def test_the_copy_is_the_drivers_own() -> None:
    model = chain()
    own = validate_model(model)
    model.main.operands[0].dimensions[0] = 7  # type: ignore[index]
    model.main.operands[4].type = T.TENSOR_FLOAT16
    model.main.operations[0].inputs[0] = 4  # type: ignore[index]
    assert own.main.operands[0].dimensions == (2, 3)
    assert own.main.operands[4].type is T.TENSOR_FLOAT32
    assert own.main.operations[0].inputs == (0, 1, 2)
    assert validate_model(own) == own


def test_bytes_of_constants_are_not_copied() -> None:
    model = chain()
    assert validate_model(model).operandValues is model.operandValues
    values = bytearray(NO_ACTIVATION)
    model.operandValues = values
    own = validate_model(model).operandValues
    assert isinstance(own, memoryview)
    assert own.readonly
    values[0] = 3
    assert own[0] == 3


def field(number: int, **fields: object) -> Break:
    """Set fields of one of main's operands."""

    def change(model: Model) -> None:
        for name, value in fields.items():
            setattr(model.main.operands[number], name, value)

    return change


def scales(values: list[float], dim: int) -> ExtraParams:
    return ExtraParams(SymmPerChannelQuantParams(values, dim))


OPERANDS = [
    (chain, 0, {"type": -1}, ", or of an extension in extensionNameToPrefix, got type 0xffffffff"),
    (chain, 0, {"type": 16}, "type must be one of the interface"),
    (chain, 0, {"type": 9999}, "type must be one of the interface"),
    (chain, 0, {"type": 10002}, "type must be one of the interface"),
    (chain, 0, {"type": 5 << 16 | 1}, "type must be one of the interface"),
    (chain, 2, {"dimensions": [1]}, "dimensions must be empty for a scalar, got (1,) (INT32)"),
    (chain, 2, {"dimensions": [0]}, "dimensions must be empty for a scalar"),
    (chain, 0, {"dimensions": [1 << 16, 1 << 16, 2]}, "dimensions must amount to less than 4 GiB"),
    (chain, 0, {"dimensions": [(1 << 32) - 1] * 100}, "dimensions must amount to less than 4 GiB"),
    (chain, 0, {"scale": 1.0}, "scale must be 0 for a type without a scale, got 1.0 (TENSOR_FLOAT32)"),
    (chain, 2, {"scale": 1.0}, "scale must be 0"),
    (convolution, 1, {"scale": 1.0}, "scale must be 0"),
    (convolution, 2, {"scale": -1.0}, "scale must be >= 0"),
    (quantised, 1, {"scale": 0.0}, "scale must be > 0"),
    (quantised, 1, {"scale": -0.5}, "scale must be > 0"),
    (quantised, 1, {"scale": float("nan")}, "scale must be a finite number"),
    (quantised, 1, {"scale": float("inf")}, "scale must be a finite number"),
    (quantised, 1, {"scale": 1e39}, "scale must be a number of single precision"),
    (quantised, 1, {"scale": 1e-60}, "scale must be > 0"),
    (chain, 0, {"zeroPoint": 1}, "zeroPoint must be 0"),
    (chain, 2, {"zeroPoint": 1}, "zeroPoint must be 0"),
    (convolution, 1, {"zeroPoint": 1}, "zeroPoint must be 0"),
    (convolution, 2, {"zeroPoint": 1}, "zeroPoint must be 0"),
    (quantised, 1, {"zeroPoint": -1}, "zeroPoint must be in [0, 255], got -1"),
    (quantised, 1, {"zeroPoint": 256}, "zeroPoint must be in [0, 255], got 256"),
    (quantised, 1, {"type": T.TENSOR_QUANT8_ASYMM_SIGNED, "zeroPoint": -129}, "zeroPoint must be in [-128, 127]"),
    (quantised, 1, {"type": T.TENSOR_QUANT8_ASYMM_SIGNED, "zeroPoint": 128}, "zeroPoint must be in [-128, 127]"),
    (quantised, 1, {"type": T.TENSOR_QUANT8_SYMM, "zeroPoint": 1}, "zeroPoint must be 0"),
    (quantised, 1, {"type": T.TENSOR_QUANT16_SYMM, "zeroPoint": -1}, "zeroPoint must be 0"),
    (quantised, 1, {"type": T.TENSOR_QUANT16_ASYMM, "zeroPoint": 65536}, "zeroPoint must be in [0, 65535]"),
    (chain, 0, {"extraParams": ExtraParams(extension=b"1")}, "extraParams must be none"),
    (chain, 0, {"extraParams": scales([1.0], 0)}, "extraParams must be none"),
    (convolution, 1, {"extraParams": None}, "extraParams must be channelQuant"),
    (convolution, 1, {"extraParams": ExtraParams(extension=b"1")}, "extraParams must be channelQuant"),
    (convolution, 1, {"extraParams": scales([1.0] * 3, 4)}, "extraParams must be channelQuant"),
    (convolution, 1, {"extraParams": scales([1.0] * 2, 0)}, "extraParams must be channelQuant"),
    (convolution, 1, {"extraParams": scales([1.0, 0.0, 1.0], 0)}, "extraParams must be channelQuant"),
    (convolution, 1, {"dimensions": [0, 1, 1, 2], "extraParams": scales([], 0)}, "extraParams must be channelQuant"),
    (branching, 1, {"lifetime": Life.NO_VALUE}, "lifetime must be SUBGRAPH for an operand of type SUBGRAPH"),
    (branching, 0, {"lifetime": Life.SUBGRAPH}, "lifetime must not be SUBGRAPH"),
    (branching, 1, {"dimensions": [1]}, "dimensions must be empty"),
    (branching, 1, {"location": DataLocation(0, 2, 0)}, "location must have the index of a referenced subgraph"),
    (branching, 1, {"location": DataLocation(0, 0, 1)}, "location must have the index of a referenced subgraph"),
    (branching, 1, {"location": DataLocation(1, 0, 0)}, "location must have the index of a referenced subgraph"),
    (chain, 0, {"location": DataLocation(1, 0, 0)}, "location must be 0"),
    (chain, 0, {"location": DataLocation(0, 1, 0)}, "location must be 0"),
    (chain, 3, {"location": DataLocation(0, 0, 1)}, "location must be 0"),
    (chain, 2, {"location": DataLocation(1, 0, 4)}, "location must have poolIndex 0"),
    (chain, 2, {"location": DataLocation(0, 1, 4)}, "location must lie within operandValues"),
    (chain, 2, {"location": DataLocation(0, 0, 2)}, "location must be as long as the operand"),
    (chain, 2, {"location": DataLocation(0, (1 << 64) - 1, 4)}, "location must lie within operandValues"),
    (chain, 2, {"lifetime": Life.CONSTANT_REFERENCE}, "location must have the poolIndex of one of the model's pools"),
    (quantised, 2, {"dimensions": []}, "dimensions must be known for a constant"),
    (quantised, 2, {"dimensions": [0]}, "dimensions must be known for a constant"),
    (quantised, 2, {"dimensions": [3]}, "location must be as long as the operand"),
    (chain, 0, {"lifetime": 7}, "lifetime must be one of TEMPORARY_VARIABLE 0"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "number", "fields", "message"), OPERANDS)
def test_operands(make: Callable[[], Model], number: int, fields: dict[str, object], message: str) -> None:
    model = make()
    field(number, **fields)(model)
    refused(model, f"main: operand {number}: ", message)


def test_every_rule_of_operands_is_broken_by_a_test() -> None:
    rules = {rule for each in (*operands.TYPE_RULES.values(), *operands.LIFETIME_RULES.values()) for rule in each}
    texts = {rule.__doc__ or "" for rule in (*rules, *operands.EXTENSION_RULES)}
    messages = []
    for make, number, fields, _ in OPERANDS:
        model = make()
        field(number, **fields)(model)
        with pytest.raises(InvalidModelError) as caught:
            validate_model(model)
        messages.append(caught.value.message.partition(", got")[0])
    assert texts - set(messages) == {
        operands.pool_in_bounds.__doc__,  # pools and extensions have separate tests
        operands.extension_data_only.__doc__,
        operands.extension_type_agrees.__doc__,
    }
    assert all(text.split(" ")[0] in Operand.__dataclass_fields__ for text in texts)


def test_zero_points_at_their_limits_are_accepted() -> None:
    for kind, values in (
        (T.TENSOR_QUANT8_ASYMM, (0, 255)),
        (T.TENSOR_QUANT8_ASYMM_SIGNED, (-128, 127)),
    ):
        for value in values:
            model = quantised()
            for number in (1, 2, 4):
                field(number, type=kind, zeroPoint=value)(model)
            validate_model(model)


# Subgraphs


def _other_inputs(indexes: list[int]) -> Break:
    return lambda model: setattr(model.main, "inputIndexes", indexes)


def _other_outputs(indexes: list[int]) -> Break:
    return lambda model: setattr(model.main, "outputIndexes", indexes)


def _operation(number: int, **fields: object) -> Break:
    def change(model: Model) -> None:
        for name, value in fields.items():
            setattr(model.main.operations[number], name, value)

    return change


def _append(operation: Operation) -> Break:
    return lambda model: model.main.operations.append(operation)  # type: ignore[attr-defined]


def _reverse(model: Model) -> None:
    model.main.operations = model.main.operations[::-1]


_VARIABLE = "whose lifetime is TEMPORARY_VARIABLE"
_THERE = "but the subgraph has operands 0 to 4"

SUBGRAPHS: list[tuple[Break, str, subgraph.Rule]] = [
    (lambda model: setattr(model.main, "operands", []), "the subgraph has no operands", subgraph.has_operands),
    (lambda model: setattr(model.main, "operations", []), "the subgraph has no operations", subgraph.has_operations),
    (_operation(1, inputs=[5]), f"operation 1: input 0 refers to operand 5, {_THERE}",
     subgraph.operations_name_operands),
    (_operation(1, outputs=[3, 99]), f"operation 1: output 1 refers to operand 99, {_THERE}",
     subgraph.operations_name_operands),
    (_other_inputs([0]), "operand 1 has lifetime SUBGRAPH_INPUT, but inputIndexes does not list it",
     subgraph.inputs_are_listed),
    (_other_inputs([0, 1, 1]), "inputIndexes lists operand 1 twice", subgraph.inputs_are_listed),
    (_other_inputs([0, 1, 3]), f"inputIndexes[2] refers to operand 3, {_VARIABLE}, not SUBGRAPH_INPUT",
     subgraph.inputs_are_listed),
    (_other_inputs([0, 1, 5]), f"inputIndexes[2] refers to operand 5, {_THERE}", subgraph.inputs_are_listed),
    (_other_outputs([]), "operand 4 has lifetime SUBGRAPH_OUTPUT, but outputIndexes does not list it",
     subgraph.outputs_are_listed),
    (_other_outputs([4, 4]), "outputIndexes lists operand 4 twice", subgraph.outputs_are_listed),
    (_other_outputs([4, 3]), f"outputIndexes[1] refers to operand 3, {_VARIABLE}, not SUBGRAPH_OUTPUT",
     subgraph.outputs_are_listed),
    (_operation(1, outputs=[0]), "operation 1: output 0 is operand 0, whose lifetime is SUBGRAPH_INPUT",
     subgraph.outputs_are_variables),
    (_operation(1, outputs=[2]), "operation 1: output 0 is operand 2, whose lifetime is CONSTANT_COPY",
     subgraph.outputs_are_variables),
    (_append(Operation(Op.RELU, [0], [4])), "operation 2: output 0 is operand 4, which operation 1 writes already",
     subgraph.written_once),
    (_operation(1, outputs=[4, 4]), "operation 1: output 1 is operand 4, which operation 1 writes already",
     subgraph.written_once),
    (_reverse, "operation 0: input 0 is operand 3, which no earlier operation writes", subgraph.written_before_read),
    (_operation(0, inputs=[3, 1, 2]), "operation 0: input 0 is operand 3, which no earlier operation writes",
     subgraph.written_before_read),
    (_operation(1, outputs=[]), "operand 4 has lifetime SUBGRAPH_OUTPUT, but no operation writes it",
     subgraph.all_written),
    (field(0, numberOfConsumers=2), "operand 0: numberOfConsumers must be 1, got 2", subgraph.consumers_are_counted),
    (field(4, numberOfConsumers=1), "operand 4: numberOfConsumers must be 0, got 1", subgraph.consumers_are_counted),
]  # fmt: skip


@pytest.mark.parametrize(("change", "problem", "rule"), SUBGRAPHS)
def test_subgraphs(change: Break, problem: str, rule: subgraph.Rule) -> None:
    model = chain()
    change(model)
    assert rule(model.main) == problem
    with pytest.raises(InvalidModelError) as caught:
        validate_model(model)
    assert str(caught.value) == f"main: {problem}"


def test_every_rule_of_subgraphs_is_broken_by_a_test() -> None:
    rules = {subgraph.has_operands, subgraph.has_operations, *subgraph.RULES}
    assert {rule for *_, rule in SUBGRAPHS} == rules


def test_a_circle_of_operations_is_refused() -> None:
    refused(circle(), "main: ", "operation 0: input 1 is operand 4, which no earlier operation writes")


def test_rules_hold_in_referenced_subgraphs() -> None:
    model = branching()
    model.referenced[1].operands[0].scale = 1.0
    refused(model, "referenced subgraph 1: operand 0: ", "scale must be 0")
    model = branching()
    model.referenced[1].operations[0].type = Op.RELU
    refused(model, "referenced subgraph 1: operation 0 (RELU): ", "takes 1 inputs, got 3")


@pytest.mark.parametrize("kind", [106, 9999, 10001, -1, 1 << 16])
def test_unknown_operations(kind: int) -> None:
    model = chain()
    model.main.operations[1].type = kind
    refused(model, "main: operation 1: ", "type must be one of the interface")


def test_an_oem_operation_is_valid_though_no_driver_must_have_it() -> None:
    model = chain()
    model.main.operations[1].type = Op.OEM_OPERATION
    validate_model(model)
    assert Op.OEM_OPERATION not in REGISTRY


def test_rules_of_the_operation_speak_with_its_name() -> None:
    model = chain()
    model.main.operands[4].type = T.TENSOR_FLOAT16
    refused(model, "main: operation 1 (RELU): ", "TENSOR_FLOAT16")
    model = chain()
    model.operandValues = (9).to_bytes(4, "little")
    refused(model, "main: operation 0 (ADD): ", "input 2 must be a FusedActivationFunc")


# Pools


def _pooled(pool: memory.Memory, offset: int = 0, length: int = 4) -> Model:
    model = chain()
    model.main.operands[2].lifetime = Life.CONSTANT_REFERENCE
    model.main.operands[2].location = DataLocation(0, offset, length)
    model.operandValues = b""
    model.pools = [pool]
    return model


def test_constants_in_a_pool() -> None:
    with memory.allocate_ashmem(8) as pool:
        validate_model(_pooled(pool, 4))
        pool.map()[4:8] = 9
        refused(_pooled(pool, 4), "main: operation 0 (ADD): ", "input 2 must be a FusedActivationFunc")
        refused(_pooled(pool, 5), "main: operand 2: ", "location must lie within its pool")
        refused(_pooled(pool, 0, 8), "main: operand 2: ", "location must be as long as the operand")


def test_a_pool_that_cannot_be_mapped_keeps_the_rules() -> None:
    """Its constants are unknown; the preparation fails because of it, with another status."""
    validate_model(_pooled(memory.hardware_buffer(8, 8), 4))


def test_pools_must_be_there() -> None:
    pool = memory.allocate_ashmem(8)
    model = _pooled(pool)
    pool.close()
    refused(model, "pool 0: ", "must have an open descriptor")
    refused(_pooled(memory.Memory("ashmem", [], 8)), "pool 0: ", "must have an open descriptor")
    descriptor = os.memfd_create("empty")
    try:
        refused(_pooled(memory.Memory("ashmem", [descriptor], 0)), "pool 0: ", "must have a size > 0")
    finally:
        os.close(descriptor)


def test_validation_leaves_no_descriptor_and_no_mapping() -> None:
    with memory.allocate_ashmem(8) as pool:
        gc.collect()  # what earlier tests have dropped
        before = descriptors(), _mappings()
        for _ in range(10):
            validate_model(_pooled(pool))
        assert descriptors() <= before[0]
        assert _mappings() <= before[1]


def _mappings() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("memfd:ashmem" in line for line in maps)


def test_bytes_of_constants_are_not_read_without_need() -> None:
    """A gigabyte of weights in a sparse file: reading them would allocate pages."""
    size = 1 << 14
    with memory.allocate_ashmem(4 * size * size + 4096) as pool:
        weights = operand(T.TENSOR_FLOAT32, [size, size], Life.CONSTANT_REFERENCE)
        weights.location = DataLocation(0, 4096, 4 * size * size)
        activation = operand(T.INT32, [], Life.CONSTANT_REFERENCE, location=DataLocation(0, 0, 4))
        operands_ = [
            operand(T.TENSOR_FLOAT32, [1, size], Life.SUBGRAPH_INPUT),
            weights,
            operand(T.TENSOR_FLOAT32, [size], Life.SUBGRAPH_INPUT),
            activation,
            operand(T.TENSOR_FLOAT32, [1, size], Life.SUBGRAPH_OUTPUT),
        ]
        main = make_subgraph(operands_, [Operation(Op.FULLY_CONNECTED, [0, 1, 2, 3], [4])])
        validate_model(Model(main, pools=[pool]))
        assert os.fstat(pool.handle[0]).st_blocks * 512 <= 1 << 16


# Extensions

KNOWN = "com.example.fibonacci"


def _extended(name: str = KNOWN, prefix: int = 7, *more: ExtensionNameAndPrefix) -> Model:
    """Return FIBONACCI of an EXAMPLE_INT64, as real numbers."""
    operands_ = [
        operand(prefix << 16, [], Life.SUBGRAPH_INPUT),  # type: ignore[arg-type]
        operand(T.TENSOR_FLOAT32, [], Life.SUBGRAPH_OUTPUT),
    ]
    main = make_subgraph(operands_, [Operation(prefix << 16, [0], [1])])
    return Model(main, extensionNameToPrefix=[ExtensionNameAndPrefix(name, prefix), *more])


@pytest.mark.parametrize("prefix", [1, 7, 0x8000, 0xFFFF])
def test_an_extension_under_any_prefix(prefix: int) -> None:
    validate_model(_extended(prefix=prefix))
    if prefix >= 0x8000:  # as the 32 bits of an int32 show it
        model = _extended(prefix=prefix)
        model.main.operations[0].type -= 1 << 32
        model.main.operands[0].type -= 1 << 32
        own = validate_model(model)
        assert own.main.operations[0].type == own.main.operands[0].type == prefix << 16


def test_an_unknown_extension_is_valid_if_it_is_named() -> None:
    validate_model(_extended("org.other"))
    model = _extended("org.other")
    model.extensionNameToPrefix = []
    refused(model, "main: operand 0: ", "type must be one of the interface, or of an extension")


@pytest.mark.parametrize("name", ["", "fibonacci", "Com.example", "com example.x", "com.éxample", "com.x\n"])
def test_names_of_extensions(name: str) -> None:
    refused(
        _extended(name),
        "extensionNameToPrefix[0]: ",
        "name must consist of lower-case letters, digits, '_' and at least one '.', got ",
    )


def test_names_and_prefixes_are_unique() -> None:
    refused(_extended(KNOWN, 7, ExtensionNameAndPrefix("a.b", 7)), "extensionNameToPrefix[1]: ", "must be unique")
    refused(_extended(KNOWN, 7, ExtensionNameAndPrefix(KNOWN, 8)), "extensionNameToPrefix[1]: ", "must be unique")
    refused(_extended(KNOWN, 7, ExtensionNameAndPrefix("a.b", 0)), "extensionNameToPrefix[1]: ", "must not be 0")
    beyond = ExtensionNameAndPrefix("a.b", 1 << 16)
    refused(_extended(KNOWN, 7, beyond), "model: ", "extensionNameToPrefix[1].prefix must be in [0, 65535]")


def test_types_and_operations_that_a_known_extension_does_not_have() -> None:
    model = _extended()
    model.main.operands[0].type = 7 << 16 | 55
    refused(model, "main: operand 0: ", "type must be one of the interface, or of an extension")
    model = _extended()
    model.main.operations[0].type = 7 << 16 | 55
    refused(model, "main: operation 0: ", "type must be one of the interface, or of an extension")


def test_operands_of_an_extension() -> None:
    model = _extended()
    model.main.operands[0].dimensions = [1]
    refused(model, "main: operand 0: ", "dimensions must be empty for a type that its extension")
    model = _extended()
    model.main.operands[0].extraParams = scales([1.0], 0)
    refused(model, "main: operand 0: ", "extraParams must be none or an extension's data")
    model = _extended()
    model.main.operands[1].type = 7 << 16 | 1
    refused(model, "main: operand 1: ", "extraParams.extension must be a FibonacciQuant64Params")
    model = _extended()
    model.main.operands[1].type = T.TENSOR_INT32
    refused(model, "main: operation 0 (type 0x70000): ", "takes EXAMPLE_INT64 or TENSOR_FLOAT32")


def test_a_constant_of_an_extension_has_the_size_of_its_type() -> None:
    model = _extended()
    model.main.operands[0].lifetime = Life.CONSTANT_COPY
    model.main.inputIndexes = []
    model.operandValues = bytes(8)
    model.main.operands[0].location = DataLocation(0, 0, 4)
    refused(model, "main: operand 0: ", "location must be as long as the operand")
    model.main.operands[0].location = DataLocation(0, 0, 8)
    validate_model(model)


def test_a_model_is_no_subgraph() -> None:
    refused(chain().main, "model: ", "the model must be of type Model, got Subgraph")  # type: ignore[arg-type]
    refused(Model(Subgraph([None], [], [], [])), "main: operand 0: ", "it must be of type Operand, got NoneType")  # type: ignore[list-item]
