"""Designs are evaluated on a Dask cluster that is there already; its scheduler repeats what a lost worker had."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from npusim.errors import UsageError
from npusim.explore.figures import Row
from npusim.explore.workers import evaluated, failed

if TYPE_CHECKING:
    from npusim.explore.evaluate import Evaluate
    from npusim.explore.space import Design

AT_ONCE = 1024
"""Designs that the scheduler has at a time."""
PATIENCE = "10s"


class Cluster:
    """The workers of a scheduler. Raises UsageError if there is no Dask, or no scheduler at ``address``."""

    def __init__(self, evaluate: Evaluate, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise UsageError("--cluster needs dask and distributed: pip install 'npusim[explore]'") from None
        try:
            self._client: Any = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(f"--cluster {address}: no Dask scheduler answers there: {error}") from None
        # A task, not scattered data: what a lost worker had of it is made again.
        blob = pickle.dumps(evaluate, pickle.HIGHEST_PROTOCOL)
        self._evaluate = self._client.submit(pickle.loads, blob, pure=False)

    def rows(self, designs: Iterable[Design]) -> Iterator[Row]:
        """The row of each design, as they come."""
        from distributed import as_completed

        left = iter(designs)
        while batch := list(itertools.islice(left, AT_ONCE)):
            futures = {self._client.submit(evaluated, self._evaluate, each, pure=False): each for each in batch}
            for future in as_completed(list(futures)):
                if future.status == "finished":
                    yield future.result()
                else:
                    error = future.exception()
                    # What ends one worker after the other is the design's own doing.
                    yield failed(futures[future], f"the cluster gave it up: {type(error).__name__}")
                future.release()

    def close(self) -> None:
        """Leave the cluster as it was."""
        self._client.close()
