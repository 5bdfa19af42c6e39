"""Evaluation of designs on an existing Dask cluster; its scheduler repeats tasks of a lost worker."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from npusim.errors import UsageError
from npusim.explore.figures import StudyRow
from npusim.explore.workers import evaluated, failed

if TYPE_CHECKING:
    from npusim.explore.evaluate import Evaluate
    from npusim.explore.space import Design

AT_ONCE = 1024
"""Designs that the scheduler holds at a time."""
PATIENCE = "10s"


class Cluster:
    """The workers of a scheduler. Raises UsageError without Dask, or without a scheduler at ``address``."""

    def __init__(self, evaluate: Evaluate, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise UsageError("--cluster needs dask and distributed: pip install 'npusim[explore]'") from None
        try:
            client: Any = distributed.Client
            self._client = client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(f"--cluster {address}: no Dask scheduler answers there: {error}") from None
        self._name = f"npusim-{uuid.uuid4().hex}"
        # Not an argument of each task, because Dask would run all such tasks on the worker that holds it. New workers
        # also receive a plugin.
        self._client.register_plugin(_evaluator(evaluate), name=self._name)

    def rows(self, designs: Iterable[Design]) -> Iterator[StudyRow]:
        """The row of each design, in order of completion."""
        import distributed

        completed: Any = distributed.as_completed

        left = iter(designs)
        while batch := list(itertools.islice(left, AT_ONCE)):
            futures = {self._client.submit(_evaluated, self._name, each, pure=False): each for each in batch}
            for future in completed(list(futures), loop=self._client.loop):
                # This waits if the worker with the result has died and another worker computes it again.
                error = future.exception()
                if error is None:
                    yield future.result()
                else:
                    # A task that ends several workers one after the other fails because of its design.
                    yield failed(futures[future], f"the cluster cancelled it: {type(error).__name__}")
                future.release()

    def close(self) -> None:
        """Remove everything that was added to the cluster."""
        with contextlib.suppress(OSError, RuntimeError):  # the scheduler may be gone
            self._client.unregister_worker_plugin(self._name)
        self._client.close()


def _evaluator(evaluate: Evaluate) -> Any:
    """A plugin with the data that each worker receives once."""
    from distributed import WorkerPlugin

    class Evaluator(WorkerPlugin):
        """Holds the evaluation function."""

        def __init__(self, blob: bytes) -> None:
            self._blob = blob

        def setup(self, worker: Any) -> None:
            """Called on the worker when it receives the plugin."""
            self.evaluate = pickle.loads(self._blob)

    return Evaluator(pickle.dumps(evaluate, pickle.HIGHEST_PROTOCOL))


def _evaluated(name: str, design: Design) -> StudyRow:
    """Evaluate a design on a worker."""
    from distributed import get_worker

    plugin: Any = get_worker().plugins[name]
    return evaluated(plugin.evaluate, design)
