"""A library that crashes, hangs and answers wrong, to see whether the fuzz sees it."""

from __future__ import annotations

import os
import random
import signal


class World:
    """What happens is the first number that comes."""

    def case(self, rng: random.Random) -> list[str]:
        number = rng.randrange(8)
        if number == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 1:
            signal.pause()
        return ["wrong"] if number == 2 else []


def make() -> World:
    return World()
