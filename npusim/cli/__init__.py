"""The command line; the installed script ``npusim`` calls ``entry``."""

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
    # Modules, graphs and programs are hundreds of thousands of objects and hardly any cycles: to look for them after
    # every 700 would take a tenth of a short command.
    gc.set_threshold(_OBJECTS)
    from npusim.cli.app import main

    return main(sys.argv[1:])


_OBJECTS = 50_000
"""More than there were, before Python looks for cycles."""
