"""The command line; ``entry`` is what the installed ``npusim`` script calls."""

from __future__ import annotations

import sys
from typing import NoReturn


def entry() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    try:
        from npusim.cli.app import main

        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were loading: main reports later ones
        sys.stderr.write("npusim: interrupted\n")
        code = 130
    sys.exit(code)
