"""A library that crashes, hangs and returns wrong results, to test that the fuzz detects it."""

from __future__ import annotations

import os
import random
import signal


class World:
    """The first random number decides what happens."""

    def case(self, rng: random.Random) -> list[str]:
        number = rng.randrange(8)
        if number == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 1:
            signal.pause()
        return ["wrong"] if number == 2 else []


def make() -> World:
    return World()
