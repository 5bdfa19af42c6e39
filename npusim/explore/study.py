"""A study: a space, the rows of its designs, and a search that proposes designs until the budget is spent.

>>> study = Study("space.toml")  # doctest: +SKIP
>>> study.run(workers=8)  # doctest: +SKIP
>>> study.front(), study.best("latency"), study.frame()  # doctest: +SKIP
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import npusim
from npusim import notebook
from npusim.errors import ConfigError, UsageError, named, shown
from npusim.explore import bayes
from npusim.explore.build import build
from npusim.explore.evaluate import Evaluate, Simulator, area_um2, load_models
from npusim.explore.figures import FIGURES, StudyRow
from npusim.explore.front import non_dominated
from npusim.explore.halving import Halving
from npusim.explore.objectives import Objectives
from npusim.explore.reading import read_space
from npusim.explore.screening import Area, Estimate, EstimateTable, Screen
from npusim.explore.search import Rounds, exhaustive
from npusim.explore.shards import StudyShard, merged, read_store
from npusim.explore.space import Design, Space
from npusim.explore.store import StudyStore
from npusim.explore.workers import Here, Pool, Processes, default_count
from npusim.hw.technology import UNPRICED
from npusim.units import ceil_div

if TYPE_CHECKING:
    import pandas as pd

    from npusim.hw.config import Config

Progress = Callable[[int, int], object]
"""Called with (evaluated designs, maximum number of designs)."""
SUFFIX = ".study"


class Study:
    """``space``: a file or a Space. ``store``: the file with the rows. None: next to the space file, or in memory for a
    Space made in Python. A study resumes from its store. ``trust``: accept rows that this user's npusim on this machine
    has not written, and sign them. ``reading``: only report the store, which another process may be writing to.

    ``evaluate``, ``estimate`` and ``area`` replace npusim's own functions. Raises ConfigError for an invalid space
    file, UsageError for a store that cannot be used or belongs to another space, NpusimError for a model.
    """

    def __init__(
        self,
        space: Space | str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        evaluate: Evaluate | None = None,
        estimate: Estimate | None = None,
        area: Area = area_um2,
        trust: bool = False,
        reading: bool = False,
    ) -> None:
        if not isinstance(space, Space):
            store = Path(space).with_suffix(SUFFIX) if store is None else store
            space = read_space(space)
        self.space = space
        self.objectives = Objectives(space)
        self.screen = Screen(space, self.objectives, area)
        free = [key for key in dict.fromkeys(axis.key for axis in space.axes) if key in UNPRICED]
        self.notes: list[str] = [f"{key} has no price: {UNPRICED[key]}" for key in free]
        self._table: EstimateTable | None = None
        self._simulator: Simulator | None = None
        if evaluate is None:
            evaluate = self._simulator = load_models(space.workloads, space.bases[0])
        self._evaluate: Evaluate = evaluate
        self._estimate = estimate
        path = None if store is None else Path(store)
        if reading and path is not None and path.parent.is_dir() and not os.path.lexists(path):
            self.notes.append(f"{path}: no such store yet, so no design has figures")
            path = None
        self._reading = reading and path is not None
        self._trust = trust
        self._store = StudyStore(path, reading=self._reading, trust=trust)
        try:
            self._agree()
            self.rows: dict[int, StudyRow] = self._stored()
            if trust:
                self._check(self.rows.values(), self._store.path)
                if not self._reading:
                    self._store.sign()
        except BaseException:
            self._store.close()
            raise

    def _stored(self) -> dict[int, StudyRow]:
        return {row.number: row for row in self._store.rows()}

    def _check(self, rows: Iterable[StudyRow], path: Path | None) -> None:
        """Refuse rows that do not belong to this space. All of a row except figures follows from its number."""
        for row in rows:
            try:
                design = self.space.design(row.number)
            except (UsageError, ConfigError) as error:
                raise UsageError(f"{path}: {error}") from None
            wanted = [each.name for each in self.space.workloads] if row.known else []
            same = (row.base, dict(row.settings), row.fingerprint) == (
                design.base, json.loads(json.dumps(design.settings)), design.config.fingerprint()
            )  # fmt: skip
            if not same or [each.model for each in row.figures] != wanted:
                raise UsageError(f"{path}: design {row.number}: is another design in this space")

    @property
    def facts(self) -> dict[str, Any]:
        """All data that determines the figures of a design: the space, digests of the models, versions."""
        digests = self._simulator.digests if self._simulator else {each.name: "" for each in self.space.workloads}
        return {"space": self.space.definition, "models": digests, "versions": versions()}

    def _agree(self) -> None:
        """Write the description of a new store; refuse a store with another description."""
        known = self._store.facts()
        if known:
            self._compare(known, self._store.path)
        elif not self._reading:
            self._store.tell(self.facts)

    def _compare(self, known: Mapping[str, Any], path: Path | None) -> None:
        """Refuse the description of a store that is not of this study."""
        changed = [part for name, now in self.facts.items() for part in _differences(name, known.get(name), now)]
        if changed:
            raise UsageError(
                f"{path}: was made for another study: {'; '.join(changed)}. Figures of both would not "
                "compare: put it back, or give another store (--store FILE). Objectives, constraints, weights and "
                "search may change"
            )

    def run(
        self,
        *,
        workers: int | None = None,
        cluster: str | None = None,
        budget: int | None = None,
        shard: StudyShard | None = None,
        progress: Progress | None = None,
    ) -> Study:
        """Search until the budget is spent or no new design is proposed. Returns itself.

        ``workers``: number of processes; 0: only this one; None: one per processor. ``cluster``: address of a Dask
        scheduler to use instead. Rows do not depend on the workers. ``shard``: only this part of the designs; see
        :meth:`merge`. Raises UsageError. May be interrupted and called again at any time.
        """
        most = self.space.search.budget if budget is None else budget
        if most and self._reading:
            raise UsageError(f"{self._store.path}: was opened for reading; budget must be 0")
        rounds = self._search(most, shard)
        pool: Pool | None = None
        done = 0
        total = min(most, self.space.size)
        if shard is not None:
            total = ceil_div(total, shard.count)
        if progress is not None:
            progress(done, total)
        try:
            wanted = next(rounds)
            while True:
                missing = [number for number in wanted if number not in self.rows]
                done += len(wanted) - len(missing)
                if missing and pool is None:
                    pool = self._pool(workers, cluster, total - done)
                if pool is not None:
                    for simulated in pool.rows(self._designs(missing)):
                        row = self._with_estimates(simulated)
                        self._store.add([row])
                        self.rows[row.number] = row
                        done += 1
                        if progress is not None:
                            progress(done, total)
                wanted = rounds.send({number: self.rows[number] for number in wanted})
        except StopIteration:
            self._note_unseen()
            return self
        except KeyboardInterrupt:  # possibly between the commit of the store and the update of self.rows
            self.rows = self._stored()
            raise
        finally:
            if pool is not None:
                pool.close()

    def merge(self, stores: Iterable[str | os.PathLike[str]]) -> Study:
        """Add the rows of other stores of this study, such as those of shards, in any order. Returns itself.

        Nothing is added if a store is of another space, model or build, if its rows were not written by this user (and
        the study was not opened with ``trust``), or if two stores have different rows of one design: UsageError names
        it.
        """
        sources = {str(self._store.path or "this study"): list(self.rows.values())}
        for path in map(Path, stores):
            facts, rows = read_store(path, self._trust)
            self._compare(facts, path)
            if self._trust:
                self._check(rows, path)
            sources[str(path)] = rows
        self._store.add(merged(sources))
        self.rows = self._stored()
        return self

    def _with_estimates(self, row: StudyRow) -> StudyRow:
        """The row with the figures that this search estimated."""
        if self._table is None:
            return row
        known = self._table.known
        figures = [dataclasses.replace(each, estimates=known(each.model, row.number)) for each in row.figures]
        return dataclasses.replace(row, figures=tuple(figures))

    def _note_unseen(self) -> None:
        """Add a note for the keys that estimates do not follow, because the search ignored their effect."""
        for model, keys in self._table.unseen().items() if self._table else ():
            note = f"{model}: estimates do not follow {', '.join(keys)}: simulations differ"
            if note not in self.notes:
                self.notes.append(note)

    def _designs(self, numbers: Iterable[int]) -> Iterator[Design]:
        return (self.space.design(number) for number in numbers)

    def _pool(self, workers: int | None, cluster: str | None, wanted: int) -> Pool:
        if cluster is not None:
            from npusim.explore.cluster import Cluster

            return Cluster(self._evaluate, cluster)
        count = default_count() if workers is None else workers
        return Processes(self._evaluate, min(count, wanted)) if count else Here(self._evaluate)

    def _search(self, budget: int, shard: StudyShard | None) -> Rounds:
        if not budget:
            if self.space.size <= self.space.search.screen:
                self.screen.allowed(range(self.space.size))
            return no_rounds()
        method = self.space.search.method
        if method == "auto":
            method = "exhaustive" if self.space.size <= budget else "halving"
        if method == "exhaustive":
            if self.space.size > budget:
                self.notes.append(
                    f"an exhaustive search goes through designs by their numbers, and a budget of {budget} may end it "
                    f"before the last of {self.space.size}"
                )
            rounds = exhaustive(self.space, self.screen, budget)
            return rounds if shard is None else shard.part(rounds)
        if method == "optuna":
            if shard is not None:
                raise UsageError(
                    '--shard: not with search.method = "optuna", whose designs depend on the rows of all earlier ones; '
                    "halving and exhaustive have shards"
                )
            return bayes.drawn(self.space, self.objectives, self.screen, budget)
        estimate = self._estimator()
        if estimate is None:
            self.notes.append("designs were not estimated, because there is no estimator for these models")
        self._table = table = EstimateTable(self.space, self.objectives, self.screen, estimate)
        rounds = Halving(self.space, self.objectives, self.screen, table).rounds(budget)
        if shard is None:
            return rounds
        self.notes.append(
            "a shard is a part of the first round of this search, because later rounds depend on its rows: merge the "
            "shards, and run the study on the merged store"
        )
        return shard.first(rounds)

    def _estimator(self) -> Estimate | None:
        if self._estimate is None and self._simulator is not None:
            from npusim.explore.estimated import estimate_of

            self._estimate = estimate_of(self._simulator.graphs)
        return self._estimate

    def config(self, number: int) -> Config:
        """The complete description of a design. Raises UsageError, ConfigError."""
        return self.space.config(number)

    def values(self, row: StudyRow) -> dict[str, Any]:
        """Figures of a row by name, in base units: over all models, and ``latency(bert)`` for each model."""
        return self.objectives.values(row)

    def feasible(self) -> list[StudyRow]:
        """Rows that fulfil every constraint, by number."""
        return [row for _, row in sorted(self.rows.items()) if not self.objectives.broken(row)]

    def front_rows(self) -> list[StudyRow]:
        """Feasible rows that are not dominated, sorted by the first objective."""
        rows = self.feasible()
        if not rows:
            return []
        points = np.array([self.objectives.of(row) for row in rows], float)
        found = [(tuple(point), row) for point, row, on in zip(points, rows, non_dominated(points), strict=True) if on]
        return [row for _, row in sorted(found, key=lambda each: (each[0], each[1].number))]

    def front(self) -> list[dict[str, Any]]:
        """The Pareto front: a mapping per design with the columns of :meth:`frame`."""
        return [self.record(row) for row in self.front_rows()]

    def best(self, metric: str) -> dict[str, Any]:
        """The feasible design with the lowest value of a figure: ``latency``, ``latency(bert)``, or the text of an
        objective.

        Raises UsageError for an unknown name, and if no feasible design has this figure.
        """
        return self.record(self.best_row(metric))

    def best_row(self, metric: str) -> StudyRow:
        """As :meth:`best`, as a row."""
        rows = self.feasible()
        known = {text.text: place for place, text in enumerate(self.space.objectives)}
        allowed = [*known, *(name for name in FIGURES if name not in known)]
        allowed += [f"{name}({each.name})" for name in FIGURES for each in self.space.workloads]
        if metric not in allowed:
            raise UsageError(f"no figure {metric!r}; there are {', '.join(allowed)}")

        def value(row: StudyRow) -> float | None:
            if metric in known:
                found: float | None = self.objectives.of(row)[known[metric]]
            else:
                found = self.values(row)[metric]
            return None if found is None or math.isnan(found) else found

        valued = [
            (found, self.objectives.of(row), row.number, row) for row in rows if (found := value(row)) is not None
        ]
        if not valued:
            raise UsageError(f"no feasible design has a figure {metric!r}")
        return min(valued, key=lambda each: each[:3])[3]

    def reasons(self) -> dict[str, int]:
        """Reasons of exclusion with the number of designs, most frequent first. Designs that were not evaluated do not
        count."""
        counts = self.screen.causes()
        counts.update(collections.Counter(reason for row in self.rows.values() if (reason := self._reason(row))))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def _reason(self, row: StudyRow) -> str:
        return self.objectives.broken(row)

    def record(self, row: StudyRow) -> dict[str, Any]:
        """All data of a row in one flat mapping; figures in base units (see ``npusim.explore.figures``)."""
        values = self.values(row) if row.known else {}
        names = [
            *FIGURES,
            *(f"{name}({each.name})" for name in FIGURES for each in self.space.workloads if name != "area"),
        ]
        if len(self.space.workloads) == 1:
            names = list(FIGURES)
        return {
            "design": row.number,
            "base": row.base,
            **{
                axis.key: row.settings.get(axis.key, axis.plain[place])
                for axis, place in zip(self.space.axes, self.space.places(row.number)[1:], strict=True)
            },
            **row.settings,
            "tier": row.status if row.known else "",
            "status": "infeasible" if self.objectives.broken(row) else "feasible",
            "reason": self.objectives.broken(row),
            **{name: values.get(name) for name in names},
            **{
                f"busy.{resource}({each.model})": share for each in row.figures for resource, share in each.busy.items()
            },
            **{f"bound({each.model})": next(iter(each.resources), "") for each in row.figures},
            **{
                f"waits.{resource}({each.model})": ps for each in row.figures for resource, ps in each.resources.items()
            },
            **{
                f"estimate.{name}({each.model})": value
                for each in row.figures
                for name, value in each.estimates.items()
            },
            **{f"digest({each.model})": each.digest for each in row.figures},
            "fingerprint": row.fingerprint,
        }

    def records(self) -> list[dict[str, Any]]:
        """All rows by number, with the same keys."""
        found = [self.record(row) for _, row in sorted(self.rows.items())]
        keys = dict.fromkeys(key for record in found for key in record)
        return [{key: record.get(key) for key in keys} for record in found]

    def frame(self) -> pd.DataFrame:
        """All rows as a DataFrame, indexed by ``design``. Raises UsageError without pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise UsageError("a DataFrame needs pandas: pip install 'npusim[explore]'") from None
        frame = pd.DataFrame(self.records())
        return frame.set_index("design") if len(frame.columns) else frame

    def _repr_html_(self) -> str:
        from npusim.explore.report import text

        return notebook.preformatted(text(self))

    def close(self) -> None:
        """Close the store, so that others may write to it."""
        self._store.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def no_rounds() -> Rounds:
    """A search that requests no designs."""
    yield from ()


def versions() -> dict[str, str]:
    """Versions that determine figures, in addition to space and models; ``source`` tells two builds of one version."""
    from npusim.compiler.version import COMPILER_VERSION
    from npusim.isa.base import ISA_VERSION

    return {
        "npusim": npusim.__version__,
        "compiler": str(COMPILER_VERSION),
        "instructions": str(ISA_VERSION),
        "source": build()["source"],
    }


def _differences(name: str, was: Any, now: Any) -> Iterator[str]:
    """Yield the changes key by key."""
    now = json.loads(json.dumps(now))
    if was == now:
        return
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        yield f"{name} was {shown(was)} and is {shown(now)}"
        return
    for key in dict.fromkeys((*was, *now)):
        if was.get(key) != now.get(key):
            place = f"{name}: {named(key)}"
            yield from _differences(place, was.get(key, "not there"), now.get(key, "not there"))
