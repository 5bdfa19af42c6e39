"""Designs proposed by an Optuna sampler, which learns from the rows of earlier proposals.

No state of Optuna is stored: a resumed study proposes the same designs again, from the same seed and rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from npusim.errors import UsageError
from npusim.explore.search import Rounds

if TYPE_CHECKING:
    from npusim.explore.objectives import Objectives
    from npusim.explore.screening import Screen
    from npusim.explore.space import Space

ROUND = 8
"""Designs that are drawn before their rows are needed. Independent of the number of workers, so that it does not affect
the result."""
IDLE = 25
"""Rounds without a new design after which the search stops."""


def drawn(space: Space, objectives: Objectives, screen: Screen, budget: int) -> Rounds:
    """At most ``budget`` designs, drawn by the sampler of the space. Raises UsageError without Optuna."""
    try:
        import optuna
    except ImportError:
        raise UsageError("search.method = \"optuna\" needs optuna: pip install 'npusim[explore]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        directions=["minimize"] * len(space.objectives), sampler=_sampler(space, objectives.space.constraints != ())
    )
    axes = _distributions(space)
    rows: dict[int, Any] = {}
    idle = 0
    while budget > 0 and idle < IDLE:
        trials = [study.ask(axes) for _ in range(min(ROUND, budget) if budget < ROUND else ROUND)]
        numbers = [space.number(int(trial.params[f"axis{i}"]) for i in range(len(space.radices))) for trial in trials]
        wanted = [n for n in screen.allowed(list(dict.fromkeys(numbers))) if n not in rows][:budget]
        idle = 0 if wanted else idle + 1
        if wanted:
            rows.update((yield wanted))
            budget -= len(wanted)
        for trial, number in zip(trials, numbers, strict=True):
            row = rows.get(number)
            values = objectives.of(row) if row is not None and row.known else ()
            if row is None or not values or any(map(math.isnan, values)):
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            lacks = [0.0 if math.isnan(lack) else lack for lack in objectives.lacks(row)]
            if hasattr(trial, "set_constraint"):
                for place, lack in enumerate(lacks):
                    trial.set_constraint(str(place), lack)
            else:
                trial.set_user_attr(_LACKS, lacks)
            study.tell(trial, list(values))


_LACKS = "lacks"


def _distributions(space: Space) -> dict[str, Any]:
    """One parameter per axis: the position on it."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        f"axis{i}": IntDistribution(0, radix - 1) if ordered else CategoricalDistribution(range(radix))
        for i, (radix, ordered) in enumerate(zip(space.radices, space.ordered, strict=True))
    }


def _sampler(space: Space, constrained: bool) -> Any:
    import optuna
    from optuna import samplers

    seed = space.search.seed
    # From version 5 on, a trial receives its constraints. Before, samplers called a function.
    asks = constrained and not hasattr(optuna.Trial, "set_constraint")
    limits: dict[str, Any] = {} if not asks else {"constraints_func": lambda trial: trial.user_attrs.get(_LACKS, [1.0])}
    if space.search.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    if space.search.sampler == "nsga2":
        return samplers.NSGAIISampler(seed=seed, **limits)
    return samplers.TPESampler(seed=seed, **limits, multivariate=True, n_startup_trials=ROUND)
