"""A case in this process with limits on time and memory. It must end in a valid outcome or an error of npusim."""

from __future__ import annotations

import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable

from npusim.errors import NpusimError

PATIENCE_S = 2.0
"""CPU time limit of a case."""
MOST_BYTES = 300 << 20
"""Additional address space allowed for a case."""
_PAGE = resource.getpagesize()


def watched(call: Callable[[], str], tally: Counter[str]) -> list[str]:
    """Run a case and return its problems. ``call`` returns the outcome as a word or raises an error of npusim; any
    other exception is a problem, including AssertionError."""
    limit = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * _PAGE
    began = time.process_time()
    problems = []
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, limit[1]))
    try:
        end = call()
    except NpusimError as error:
        end = type(error).__name__
        if not str(error).isprintable() and not str(error).replace("\n", "").isprintable():
            problems.append(f"not printable: {error!r}")
    except (Exception, RecursionError) as error:  # noqa: BLE001 - that is what is looked for
        end = "not an error of npusim"
        problems.append(" | ".join(traceback.format_exception(error)[-3:]))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    took = time.process_time() - began
    problems += [f"took {took:.1f} s"] if took > PATIENCE_S else []
    tally[end] += 1
    return [problem.replace("\n", " ") for problem in problems]
