"""A process that Ctrl-C reaches, whoever started the tests: a child of who ignores the signal would ignore it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence


def started(command: Sequence[str]) -> subprocess.Popen[str]:
    """The process, its standard output and errors to be read."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
