from collections.abc import Sequence
from typing import Any, Self, final

from .descriptor import TensorDescriptorV1

__pyx_capi__: dict[str, Any]
__test__: dict[str, str]

@final
class Numbers:
    def __new__(cls, values: Sequence[int] | None) -> Self: ...

@final
class Tensors:
    def __new__(cls, descriptors: Sequence[TensorDescriptorV1] | None, count: int | None) -> Self: ...
