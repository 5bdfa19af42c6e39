from collections.abc import Sequence
from typing import Any, final

DEBUG: bool
__pyx_capi__: dict[str, Any]
__test__: dict[str, str]
_C_API: Any

@final
class Run: ...

def complete(
    run: Run,
    status: int,
    timing: tuple[int, int, int, int, int] | None = None,
    trace: Sequence[tuple[str, int, int]] | None = None,
    message: str = "",
) -> None: ...
def unplug(device: int) -> None: ...
def plug(device: int) -> None: ...
