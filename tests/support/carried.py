"""The measured points that the project carries, each set replayed once in a process, whoever asks."""

from __future__ import annotations

import functools

from npusim.validate.replay import SetOutcome, carried_folder, find, replay

FOUND = {data.name: (data, path) for data, path in find(carried_folder())[0]}


@functools.cache
def replayed(name: str) -> SetOutcome:
    """A set, replayed."""
    [outcome] = replay([FOUND[name]])
    return outcome
