"""``python -m npusim`` is the ``npusim`` command."""

from npusim.cli import entry

if __name__ == "__main__":
    entry()
