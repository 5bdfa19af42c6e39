"""The command line; ``entry`` is what the installed ``npusim`` script calls."""
