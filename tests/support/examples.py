"""Numbers of examples for properties where the profile's default does not fit."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return ``count`` for the default profile, scaled by the ratio of the number of examples for another profile."""
    profile = settings.default
    assert profile is not None
    return count * profile.max_examples // settings.get_profile("default").max_examples
