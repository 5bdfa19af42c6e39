"""Vendor extensions: the registry, and ``com.example.fibonacci``, the worked example of the guide."""

from . import fibonacci
from .registry import (
    ExtensionDefinition,
    ExtensionOperandType,
    definitions_of,
    find_extension,
    load_entry_points,
    own,
    register,
    registered,
    storage_of,
    unregister,
)

__all__ = [
    "ExtensionDefinition",
    "ExtensionOperandType",
    "definitions_of",
    "fibonacci",
    "find_extension",
    "load_entry_points",
    "own",
    "register",
    "registered",
    "storage_of",
    "unregister",
]
