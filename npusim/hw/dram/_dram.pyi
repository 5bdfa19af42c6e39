"""Types of the compiled DRAM controller; the meaning of each is in its docstring."""

import numpy as np
import numpy.typing as npt

def serve(
    parameters: dict[str, int],
    requests: npt.NDArray[np.int64],
    unit: int,
    outstanding: int,
    pace: int,
    probes: npt.NDArray[np.int64],
    warmup: int,
) -> dict[str, int]: ...
def serve_runs(
    parameters: dict[str, int],
    base: int,
    other: int,
    runs: int,
    run: int,
    stride: int,
    mode: int,
    outstanding: int,
    fast: bool,
) -> dict[str, int]: ...
