"""The command line; ``entry`` is what the installed ``npusim`` script calls."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn


def entry() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    # Modules, graphs and programs are hundreds of thousands of objects and hardly any cycles: to look for them after
    # every 700 would take a tenth of a short command.
    gc.set_threshold(_OBJECTS)
    try:
        from npusim.cli.app import main

        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were loading: main reports later ones
        sys.stderr.write("npusim: interrupted\n")
        code = 130
    sys.exit(code)


_OBJECTS = 50_000
"""More than there were, before Python looks for cycles."""
