"""Mutations of valid NNAPI models, each of which a driver must refuse.

Mutations skip changes that the specification allows, such as removing an optional argument or using another accepted
type.
"""

from __future__ import annotations

from tests.support.nnapi_examples.mutations import operand_lists, operand_types, operands, operations
from tests.support.nnapi_examples.mutations.copies import Mutation

MUTATIONS: dict[str, Mutation] = {
    "executionOrder": operations.execution_order,
    "operandType": operands.operand_type,
    "operandRank": operands.operand_rank,
    "operandScale": operands.operand_scale,
    "operandZeroPoint": operands.operand_zero_point,
    "operandLifeTime": operands.operand_lifetime,
    "operandInputOutput": operands.operand_input_output,
    "numberOfConsumers": operands.number_of_consumers,
    "addWriter": operations.add_writer,
    "operationOperandType": operand_types.operation_operand_type,
    "operationType": operations.operation_type,
    "inputOperandIndex": operations.input_operand_index,
    "outputOperandIndex": operations.output_operand_index,
    "removeWrite": operations.remove_write,
    "removeOperand": operations.remove_operand,
    "removeOperation": operations.remove_operation,
    "removeOperationInput": operand_lists.remove_operation_input,
    "removeOperationOutput": operand_lists.remove_operation_output,
    "addOperationInput": operand_lists.add_operation_input,
    "addOperationOutput": operand_lists.add_operation_output,
}
