"""The contract of ONNXIFI line by line: every status that a function may return, and what causes it.

A line's check takes a :class:`Client` of any implementation: the Python one, or a C library with the same Python
signatures (see ``Door``). ``CONTRACT`` contains all lines by number.
"""

from __future__ import annotations

from tests.support.onnxifi import contract_graphs, contract_objects  # noqa: F401  (they fill CONTRACT)
from tests.support.onnxifi.client import CONTRACT, Client, Door, Line

__all__ = ["CONTRACT", "Client", "Door", "Line"]
