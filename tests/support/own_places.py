"""Directories for npusim's user files during a test run."""

from __future__ import annotations

import os

VARIABLES = ("NPUSIM_STATE_DIR", "NPUSIM_CACHE_DIR")


def places() -> dict[str, str]:
    """Return the environment variables for a process that inherits no others."""
    return {variable: os.environ[variable] for variable in VARIABLES if variable in os.environ}
