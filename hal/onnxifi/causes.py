"""The UNSUPPORTED status for each reason of the frontend or the compiler to refuse a model."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .status import Status

Reason = tuple[str, str, str]
"""(node, operator, reason), as in UnsupportedError."""

NEEDS_VALUE = "must be a constant"
KNOWN_CONDITION = "the condition must be known"
"""An operand determines the computation, and its value is unknown."""

CAUSES: tuple[tuple[str, Status], ...] = (
    (r"^operator set \d+ (is not supported|cannot be converted)", Status.UNSUPPORTED_VERSION),
    (r"from operator set \d+ on$", Status.UNSUPPORTED_VERSION),
    (r"^npusim has no operator ", Status.UNSUPPORTED_OPERATOR),
    (r" has no (vector|scalar|matrix) unit$", Status.UNSUPPORTED_OPERATOR),
    (r"^element type ", Status.UNSUPPORTED_DATATYPE),
    (r"does not compute with ", Status.UNSUPPORTED_DATATYPE),
    (r"^results of 4- and 2-bit types", Status.UNSUPPORTED_DATATYPE),
    (r"^a factor of .* is not supported$", Status.UNSUPPORTED_DATATYPE),
    (r"operands of two types are not supported$", Status.UNSUPPORTED_DATATYPE),
    (r"sequences or optional values$", Status.UNSUPPORTED_DATATYPE),
    (r"^outputs that are no tensors", Status.UNSUPPORTED_DATATYPE),
    (r"^the size of its result depends on data$", Status.UNSUPPORTED_OPERATOR),
    (r"^sequences of more than \d+ tensors", Status.UNSUPPORTED_SHAPE),
    (r"^sparse tensors are not supported", Status.UNSUPPORTED_DATATYPE),
    (r"^(inputs|data) of type ", Status.UNSUPPORTED_DATATYPE),
    (r" \(got [^)]*\)$", Status.UNSUPPORTED_DATATYPE),
    (NEEDS_VALUE, Status.UNSUPPORTED_SHAPE),
    (r"^signals of complex numbers", Status.UNSUPPORTED_SHAPE),
    (r"spatial dimensions are supported", Status.UNSUPPORTED_SHAPE),
    (r"^an empty input is not supported", Status.UNSUPPORTED_SHAPE),
    (r"^a mask .* for scores ", Status.UNSUPPORTED_SHAPE),
    (r"^several sequences with past keys", Status.UNSUPPORTED_SHAPE),
    (r"^dimension .* is empty$", Status.UNSUPPORTED_SHAPE),
    (r"it must not broadcast$", Status.UNSUPPORTED_SHAPE),
    (r"^input \d+ is a list of \d+ elements", Status.UNSUPPORTED_SHAPE),
    (r"is made of too many elements", Status.UNSUPPORTED_SHAPE),
    (r"weights that are left out are not supported$", Status.UNSUPPORTED_SHAPE),
    (r"^a scale of A for each of \d+ columns", Status.UNSUPPORTED_SHAPE),
    (r"^tensors of up to \d+ dimensions", Status.UNSUPPORTED_SHAPE),
    (r"^needs a table of \d+ elements", Status.UNSUPPORTED_SHAPE),
    (r"elements, at most \d+ are supported$", Status.UNSUPPORTED_SHAPE),
    (r"^matrices of \d+ rows", Status.UNSUPPORTED_SHAPE),
    (r"^\d+ steps", Status.UNSUPPORTED_SHAPE),
    (r"iterations are not supported in one program$", Status.UNSUPPORTED_SHAPE),
    (KNOWN_CONDITION, Status.UNSUPPORTED_SHAPE),
    (r"^a loop that is never entered", Status.UNSUPPORTED_SHAPE),
)
"""Pattern of the reason, status; the first match counts. Other reasons concern the attributes of a node."""

# The text of the reason decides: the frontend has one kind of refusal, this specification five statuses.
_PATTERNS = tuple((re.compile(pattern), status) for pattern, status in CAUSES)
_ORDER = (
    Status.UNSUPPORTED_VERSION,
    Status.UNSUPPORTED_OPERATOR,
    Status.UNSUPPORTED_DATATYPE,
    Status.UNSUPPORTED_ATTRIBUTE,
    Status.UNSUPPORTED_SHAPE,
)


def cause(reason: str) -> Status:
    """Return the status for one reason."""
    return next((status for pattern, status in _PATTERNS if pattern.search(reason)), Status.UNSUPPORTED_ATTRIBUTE)


def worst(reasons: Iterable[Reason]) -> Status:
    """Return the status for a model with several reasons, by precedence: version, operator, type, attribute, shape."""
    found = {cause(reason) for _, _, reason in reasons}
    return next(status for status in _ORDER if status in found)
