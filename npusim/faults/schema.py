"""The JSON Schema of fault scripts, for editors; ``python -m npusim.faults.schema`` writes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npusim.faults.script import lead
from npusim.faults.what import WHAT
from npusim.faults.when import WHEN
from npusim.hw.keys import Key, entries
from npusim.hw.schema import object_schema
from npusim.pages import write_or_check

SCHEMA = "faults.schema.json"


def json_schema() -> dict[str, Any]:
    """JSON Schema of a script."""
    fault = {
        "type": "object",
        "additionalProperties": False,
        "required": ["when", "what"],
        "properties": {
            "name": {"type": "string", "description": "name of the fault in messages"},
            "when": {"description": "when it happens", "anyOf": _alternatives(WHEN)},
            "what": {"description": "what happens", "anyOf": _alternatives(WHAT)},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "npusim fault script",
        "type": "object",
        "additionalProperties": False,
        "required": ["fault"],
        "properties": {"fault": {"type": "array", "minItems": 1, "items": fault}},
    }


def _alternatives(classes: Sequence[type[Any]]) -> list[dict[str, Any]]:
    found = []
    for cls in classes:
        required = [entry.name for _, entry in entries(cls) if isinstance(entry, Key) and entry.required]
        found.append({"title": lead(cls), "description": cls.__doc__, **object_schema(cls), "required": required})
    return found


def render() -> str:
    """The text of the schema file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    page = Path("docs/reference") / SCHEMA
    sys.exit(write_or_check("npusim.faults.schema", __doc__, page, render, None))
