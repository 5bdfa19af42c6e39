"""The JSON Schema of space files, for editors; ``python -m npusim.explore.schema`` writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from npusim.explore.kinds import SpaceFile
from npusim.hw.schema import object_schema
from npusim.pages import write_or_check

SCHEMA = "space.schema.json"


def json_schema() -> dict[str, Any]:
    """JSON Schema of a space file."""
    schema = object_schema(SpaceFile)
    model = schema["properties"]["model"]["items"]
    model["anyOf"] = [{"required": ["file"]}, {"required": ["network", "shape"]}, {"required": ["network", "variant"]}]
    model["properties"]["variant"]["items"]["required"] = ["name"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "npusim space of designs",
        **schema,
        "required": ["base", "model"],
    }


def render() -> str:
    """The text of the schema file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    page = Path("docs/reference") / SCHEMA
    sys.exit(write_or_check("npusim.explore.schema", __doc__, page, render, None))
