"""Validation of models and requests against the rules of the interface. A rule is a function whose docstring is the
message."""

from .model import validate_model
from .options import validate_preference, validate_priority
from .request import RequestRules, ResolvedRequest, validate_request

__all__ = [
    "RequestRules",
    "ResolvedRequest",
    "validate_model",
    "validate_preference",
    "validate_priority",
    "validate_request",
]
