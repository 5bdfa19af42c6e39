"""The measured points shipped with the project; each set is replayed once per process."""

from __future__ import annotations

import functools

from npusim.validate.replay import SetOutcome, carried_folder, find, replay

FOUND = {data.name: (data, path) for data, path in find(carried_folder())[0]}


@functools.cache
def replayed(name: str) -> SetOutcome:
    """Replay a set."""
    [outcome] = replay([FOUND[name]])
    return outcome
