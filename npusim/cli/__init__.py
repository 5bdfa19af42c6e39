"""The command line. The installed script ``npusim`` calls ``entry``."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from npusim.cli import signals


def entry() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    try:
        signals.install()
        code = _run()
    except KeyboardInterrupt:  # while modules were loading: main reports later ones
        sys.stderr.write(f"{signals.message()}\n")
        code = signals.code()
    sys.exit(code)


def _run() -> int:
    # A command creates hundreds of thousands of objects with hardly any cycles. With the default threshold of 700,
    # garbage collection would take a tenth of the time of a short command.
    gc.set_threshold(_OBJECTS)
    from npusim.cli.app import main

    return main(sys.argv[1:])


_OBJECTS = 50_000
"""Threshold of the garbage collector, in allocations."""
