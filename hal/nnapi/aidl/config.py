"""Configurations of preparations and executions: vendor hints are checked, whether a driver follows them or not."""

from __future__ import annotations

from typing import Any

from ..types import ExtensionNameAndPrefix
from ..validation.extensions import check_names
from ..validation.fields import MalformedError, blob, instance, instances, integer
from .model import MAX_PREFIX
from .types import ExecutionConfig, TokenValuePair

_LARGEST_TOKEN = (1 << 31) - 1


def checked_config(config: Any) -> ExecutionConfig:
    """The configuration of an execution. Raises MalformedError, InvalidModelError."""
    given = instance(config, ExecutionConfig, "config")
    check_hints(given.executionHints, given.extensionNameToPrefix, "executionHints")
    return given


def check_hints(hints: Any, names: Any, what: str) -> None:
    """Check vendor hints, and the extensions of their prefixes.

    Each token is that of one hint at most. A hint whose prefix has no name, or that of an extension which this driver
    lacks, is ignored as the interface says. Raises MalformedError, InvalidModelError.
    """
    entries = [entry for _, entry in instances(names, ExtensionNameAndPrefix, "extensionNameToPrefix")]
    for entry in entries:
        instance(entry.name, str, "extensionNameToPrefix: name")
        integer(entry.prefix, 0, MAX_PREFIX, "extensionNameToPrefix: prefix")
    check_names(entries)
    seen: set[int] = set()
    for number, hint in instances(hints, TokenValuePair, what):
        token = integer(hint.token, 0, _LARGEST_TOKEN, f"{what}[{number}].token")
        blob(hint.value, f"{what}[{number}].value")
        if token in seen:
            raise MalformedError(f"{what}[{number}]: token {token:#x} must be that of one hint, it is that of two")
        seen.add(token)
