"""Write the record again after an intended change of cycles: ``python -m tests.golden.regenerate``.

The diff in version control then shows the effect of the change on every graph and device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.graphs.golden import CONFIGS, GRAPHS, record

PATH = Path(__file__).with_name("cycles.json")


def load() -> dict[str, dict[str, Any]]:
    """Return the record by ``graph on config``."""
    found = json.loads(PATH.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def main() -> None:
    """Replace the record."""
    rows = {f"{graph} on {config}": record(graph, config) for graph in GRAPHS for config in CONFIGS}
    PATH.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
