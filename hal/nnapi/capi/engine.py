"""The only function that the C library calls."""

from __future__ import annotations

import logging
import os

from npusim.report.format import LogFormatter

from . import functions_compilation, functions_execution, functions_model, functions_support
from .codes import ResultCode
from .entry import ENTRIES, call

LOG_VARIABLE = "NPUSIM_NNAPI_LOG"
"""A level of Python's logging; messages of the runtime and the driver go to the standard error stream."""

INTERRUPTED = int(ResultCode.OP_FAILED)
"""The result of a call in which Python was asked to exit."""

__all__ = [
    "ENTRIES",
    "INTERRUPTED",
    "call",
    "functions_compilation",
    "functions_execution",
    "functions_model",
    "functions_support",
    "start_logging",
]


def start_logging() -> None:
    """Configure logging from the environment, unless the process has configured logging itself."""
    level = os.environ.get(LOG_VARIABLE, "").upper()
    if not level:
        return
    logger = logging.getLogger("hal.nnapi")
    if level not in logging.getLevelNamesMapping():
        logger.warning("%s: must be a level of logging, is %s", LOG_VARIABLE, level)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(name)s: %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
