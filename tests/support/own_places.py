"""Where npusim keeps what is its user's: a test run has places of its own."""

from __future__ import annotations

import os

VARIABLES = ("NPUSIM_STATE_DIR", "NPUSIM_CACHE_DIR")


def places() -> dict[str, str]:
    """The variables with their values, for a process that inherits no others."""
    return {variable: os.environ[variable] for variable in VARIABLES if variable in os.environ}
