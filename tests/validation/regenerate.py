"""Write the record of tests/validation again: ``python -m tests.validation.regenerate``."""

from __future__ import annotations

import json
from pathlib import Path

from npusim.validate.replay import SetOutcome, carried_folder, find, replay

RECORD = Path(__file__).with_name("golden.json")


def figures(outcome: SetOutcome) -> dict[str, float]:
    """Return the recorded figures of a data set: errors in percent, to three decimals."""
    found = outcome.summary
    assert found is not None
    errors = {"mape": found.mape, "worst": found.worst, "bias": found.bias}
    rounded = {name: round(value, 3) for name, value in errors.items()}
    return {"points": found.points, "excluded": len(outcome.excluded), **rounded}


if __name__ == "__main__":
    found, _ = find(carried_folder())
    record = {outcome.data.name: figures(outcome) for outcome in replay(found)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
