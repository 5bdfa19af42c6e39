"""Writes the blocks of the documentation that commands print: ``python -m tests.packaging.printed``.

Run it after a change of what they print, and read the difference.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.support.documents import PAGES, blocks, rewritten, run, to_run


def main() -> None:
    """Rewrite the pages that differ."""
    for page in PAGES:
        if not any(block.command for block in blocks(page)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            text = rewritten(page, run(to_run(page), Path(folder), Path(sys.executable).parent))
        if text != page.read_text("utf-8"):
            page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
