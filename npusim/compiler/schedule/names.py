"""Names of layers in schedules, and the groups that they refer to."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from npusim.compiler.grouping.groups import Group
from npusim.compiler.schedule.schedule import unique_names
from npusim.errors import ScheduleError, named

_NAMED = 5


class LayerNames:
    """The layers of a program. A group has the name of its first operator; the names of its other operators also refer
    to it."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.names = unique_names(group.name for group in groups)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        for number, group in enumerate(groups):
            for op in group.ops:
                self._numbers.setdefault(op.name, number)

    def number(self, name: str, where: str) -> int:
        """The group number of a layer. ``where``: the entry that names it. Raises ScheduleError for an unknown name."""
        number = self._numbers.get(name)
        if number is None:
            raise ScheduleError(f"{where}: no layer {named(name)}; {suggestion(name, self.names)}")
        return number


def suggestion(name: str, known: Sequence[str]) -> str:
    """A hint for an error message: the most similar known names, or the first ones."""
    found = get_close_matches(name, known[:2000], _NAMED) or list(known[:_NAMED])
    return f"must be one of {len(known)}, such as {', '.join(map(named, found))}" if found else "there are none"
