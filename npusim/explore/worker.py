"""The main loop of a worker process: read the evaluation, then designs, until the pipe ends."""

from __future__ import annotations

import gc
import pickle
from multiprocessing.connection import Connection


def main(descriptor: int) -> None:
    """Serve the parent at the other end of a pipe: send None after all imports, then a row for each design."""
    pipe = Connection(descriptor)
    try:
        evaluate = pickle.loads(pipe.recv_bytes())
        from npusim.explore.workers import evaluated

        # These objects live until the end, so the garbage collector need not scan them.
        gc.freeze()
        pipe.send(None)
        while True:
            pipe.send(evaluated(evaluate, pipe.recv()))
    except (EOFError, OSError):
        pass  # the parent has ended or closed the pipe
