"""A process that receives Ctrl-C even if the tests were started by a process that ignores the signal."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence


def started(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process with standard output and standard error as pipes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
