"""Types of the compiled prices; the meaning of each is in its docstring."""

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

_Numbers = npt.NDArray[np.int64]

WAYS: list[str]
NUMBERS: dict[str, int]

@disjoint_base
class Prices:
    def __init__(self, prices: Mapping[Any, Any] | array[int], column: int = -1) -> None: ...

def answer(prices: list[Prices], wanted: _Numbers, values: _Numbers) -> None: ...
