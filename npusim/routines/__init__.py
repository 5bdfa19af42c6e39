"""Routines: named firmware for operators that no other kind expresses. The registry and the shipped routines."""

from npusim.routines import boxes, hashing, regions, sampling
from npusim.routines.base import (
    Cut,
    Routine,
    Spec,
    canonical,
    find_routine,
    latest_routine,
    register_routine,
    unregister_routine,
)

__all__ = [
    "Cut",
    "Routine",
    "Spec",
    "boxes",
    "canonical",
    "find_routine",
    "hashing",
    "latest_routine",
    "regions",
    "register_routine",
    "sampling",
    "unregister_routine",
]
