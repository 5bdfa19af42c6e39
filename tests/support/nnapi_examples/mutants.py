"""Create mutants of the NNAPI conformance examples, and report which kinds a driver refuses, and how fast.

Running all of them takes minutes::

    python -m tests.support.nnapi_examples.mutants [--kind removeOperand ...] [V1_0 ...] [part of an example's name ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hal.nnapi.errors import InvalidModelError
from hal.nnapi.types import ExecutionPreference, Model, Priority
from hal.nnapi.validation import validate_model, validate_preference, validate_priority
from tests.support.nnapi_examples.examples import VERSIONS, build_model, examples
from tests.support.nnapi_examples.mutations import MUTATIONS

PREFERENCE, PRIORITY = "executionPreference", "priority"
KINDS = (*MUTATIONS, PREFERENCE, PRIORITY)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutated model and how to prepare it."""

    kind: str
    what: str
    model: Model
    preference: int = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: int = Priority.MEDIUM


def mutants(model: Model, kinds: Sequence[str] = KINDS) -> Iterator[Mutant]:
    """Yield every mutant of a model, of these kinds."""
    for kind in kinds:
        if kind == PREFERENCE:
            yield from (Mutant(kind, f"{kind} := {value}", model, preference=value) for value in (-1, 3))
        elif kind == PRIORITY:
            yield from (Mutant(kind, f"{kind} := {value}", model, priority=value) for value in (-1, 3))
        else:
            yield from (Mutant(kind, what, mutated) for what, mutated in MUTATIONS[kind](model))


def refusal(mutant: Mutant) -> str | None:
    """Return the validation error of a mutant, or None."""
    try:
        validate_model(mutant.model)
        validate_preference(mutant.preference)
        validate_priority(mutant.priority)
    except InvalidModelError as error:
        return str(error)
    return None


@dataclass(slots=True)
class Tally:
    """Results for the mutants of one kind."""

    count: int = 0
    accepted: int = 0
    raised: int = 0
    seconds: float = 0.0
    examples: Counter[str] = field(default_factory=Counter)

    def judge(self, mutant: Mutant, name: str) -> None:
        """Count one mutant of the example ``name``."""
        begin = time.perf_counter()
        try:
            message = refusal(mutant)
        except Exception as error:  # noqa: BLE001 - counting them is what this is for
            self.raised += 1
            message = f"{type(error).__name__}: {error}"
            self.examples[f"{name}: {mutant.what}: {message}"] += 1
        self.seconds += time.perf_counter() - begin
        self.count += 1
        if message is None:
            self.accepted += 1
            self.examples[f"{name}: {mutant.what}"] += 1


def tally(models: Iterable[tuple[str, Model]], kinds: Sequence[str] = KINDS) -> dict[str, Tally]:
    """Judge every mutant of some kinds of these models."""
    found = {kind: Tally() for kind in kinds}
    for name, model in models:
        for mutant in mutants(model, kinds):
            found[mutant.kind].judge(mutant, name)
    return found


def valid_models(versions: Sequence[str] = VERSIONS, names: Sequence[str] = ()) -> Iterator[tuple[str, Model]]:
    """Yield the examples that a driver must execute, with their names."""
    for rec, get in examples(versions):
        if not rec["expectFailure"] and (not names or any(name in rec["test"] for name in names)):
            yield rec["test"], build_model(rec, get)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per kind, then every mutant that was not refused. Returns 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="mutations of this kind only")
    parser.add_argument("words", nargs="*", help="versions, parts of examples' names")
    options = parser.parse_args(arguments)
    versions = [word for word in options.words if word in VERSIONS] or VERSIONS
    names = [word for word in options.words if word not in VERSIONS]
    found = tally(valid_models(versions, names), options.kind or KINDS)
    out = sys.stdout
    for kind, each in found.items():
        speed = each.count / each.seconds if each.seconds else 0
        out.write(f"{kind:22} {each.count:8} accepted {each.accepted:5} raised {each.raised:5} {speed:9.0f}/s\n")
    total, seconds = sum(each.count for each in found.values()), sum(each.seconds for each in found.values())
    out.write(f"{'total':22} {total:8} in {seconds:.1f} s: {total / seconds if seconds else 0:.0f}/s\n")
    for each in found.values():
        out.writelines(f"  {example}\n" for example in each.examples)
    return int(any(each.examples for each in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
