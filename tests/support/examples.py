"""How many examples of a property are tried where the profile's number is not the right one."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """``count`` in the default run, and under another profile as many times more as that has."""
    profile = settings.default
    assert profile is not None
    return count * profile.max_examples // settings.get_profile("default").max_examples
