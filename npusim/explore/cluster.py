"""Evaluation of designs on an existing Dask cluster; its scheduler repeats tasks of a lost worker.

Each worker compares its npusim with that of the study before its first design, because figures of different builds must
not be in one study.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npusim.errors import UsageError
from npusim.explore.build import build
from npusim.explore.figures import StudyRow
from npusim.explore.workers import failed

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
        try:
            self._client.register_plugin(_evaluator(evaluate), name=self._name)
            self._check(self._client.run(_plugin_problem(self._name)))
        except BaseException:
            self.close()
            raise

    def _check(self, problems: Mapping[str, str]) -> None:
        """Raise UsageError if a worker cannot evaluate. ``problems``: by the address of the worker."""
        for address, problem in sorted(problems.items()):
            if problem:
                raise UsageError(f"--cluster: the worker {address} {problem}: install the same build there")

    def rows(self, designs: Iterable[Design]) -> Iterator[StudyRow]:
        """The row of each design, in order of completion."""
        import distributed

        completed: Any = distributed.as_completed

        left, task = iter(designs), _task(self._name)
        while batch := list(itertools.islice(left, AT_ONCE)):
            futures = {self._client.submit(task, pickle.dumps(each), pure=False): each for each in batch}
            for future in completed(list(futures), loop=self._client.loop):
                # This waits if the worker with the result has died and another worker computes it again.
                error = future.exception()
                if error is not None:
                    # A task that ends several workers one after the other fails because of its design.
                    yield failed(futures[future], f"the cluster cancelled it: {type(error).__name__}")
                elif isinstance(found := future.result(), StudyRow):
                    yield found
                else:
                    self._check(found)
                future.release()

    def close(self) -> None:
        """Remove everything that was added to the cluster."""
        with contextlib.suppress(OSError, RuntimeError):  # the scheduler may be gone
            self._client.unregister_worker_plugin(self._name)
        self._client.close()


# Workers may have another npusim, or none. Functions that run there before the check are nested, because Dask sends
# nested functions by value; they import nothing of npusim.


def _evaluator(evaluate: Evaluate) -> Any:
    """A plugin with the data that each worker receives once."""
    from distributed import WorkerPlugin

    class Evaluator(WorkerPlugin):
        """Holds the evaluation function, or the reason why this worker cannot evaluate."""

        def __init__(self, blob: bytes, versions: dict[str, str]) -> None:
            self._blob = blob
            self._versions = versions

        def setup(self, worker: Any) -> None:
            """Called on the worker when it receives the plugin."""
            import pickle

            self.problem = ""
            try:
                from npusim.explore.build import build
            except ImportError as error:
                self.problem = f"cannot import npusim ({error})"
                return
            here = build()
            other = [
                f"{name} {here[name]}, not {there}" for name, there in self._versions.items() if here[name] != there
            ]
            if other:
                self.problem = f"has another build ({', '.join(other)})"
                return
            self.evaluate = pickle.loads(self._blob)

    return Evaluator(pickle.dumps(evaluate, pickle.HIGHEST_PROTOCOL), build())


def _plugin_problem(name: str) -> Callable[..., str]:
    def problem(dask_worker: Any) -> str:
        """Why a worker cannot evaluate, or an empty string."""
        return str(dask_worker.plugins[name].problem)

    return problem


def _task(name: str) -> Callable[[bytes], StudyRow | dict[str, str]]:
    def evaluate(design: bytes) -> StudyRow | dict[str, str]:
        """The row of a pickled design, or the problem of this worker by its address."""
        import pickle

        from distributed import get_worker

        worker: Any = get_worker()
        plugin = worker.plugins[name]
        if plugin.problem:
            return {worker.address: plugin.problem}
        from npusim.explore.workers import evaluated

        return evaluated(plugin.evaluate, pickle.loads(design))

    return evaluate
