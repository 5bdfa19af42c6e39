"""Mapped bytes of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from npusim._mapped import MappedFile


class Mapping(np.ndarray[Any, np.dtype[np.uint8]]):
    """The mapped bytes of a pool: an array of uint8, read-only if the pool's protection says so.

    Bytes and bytes-like values may be assigned as well as numbers. ``with`` is allowed and has no effect: the mapping
    ends with its last view.

    A client may truncate the file at any time. Users of the bytes call ``check`` before, which detects an earlier
    truncation, and ``confirm`` afterwards: bytes lost meanwhile were read as zeros, and writes to them were lost.
    """

    file: MappedFile | None = None
    """The mapped memory, with its own descriptor."""
    end: int = 0
    """The length that the file must have for every byte to exist."""
    sealed: bool = False
    """Whether the kernel prevents truncation of the file."""

    def __array_finalize__(self, origin: object) -> None:
        if isinstance(origin, Mapping) and self.base is not None:  # only views keep the mapping alive
            self.file, self.end, self.sealed = origin.file, origin.end, origin.sealed

    def __array_wrap__(self, array: Any, context: object = None, return_scalar: bool = False) -> Any:
        # Results of arithmetic do not keep the mapping alive; before numpy 2 they are instances of it.
        plain = np.asarray(array)
        return plain if plain.shape else plain[()]

    def __setitem__(self, place: Any, value: Any) -> None:
        if self.dtype == np.uint8 and isinstance(value, bytes | bytearray | memoryview):
            value = np.frombuffer(value, np.uint8)
        super().__setitem__(place, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Does nothing."""

    def check(self) -> None:
        """Raise FileCutError if the file is too short, now or when its bytes were used."""
        if self.file is not None and not self.sealed:
            self.file.check(self.end)

    def confirm(self) -> None:
        """Raise FileCutError if bytes were used after they had been truncated."""
        if self.file is not None:
            self.file.check()

    @property
    def cut(self) -> bool:
        """Whether bytes were used after they had been truncated. From then on, the mapping is no longer of the file."""
        return self.file is not None and self.file.cut

    def part(self, offset: int, length: int) -> Mapping:
        """``length`` bytes from ``offset`` on."""
        return self[offset : offset + length].view(Mapping)

    def store(self, data: npt.NDArray[np.uint8]) -> None:
        """Write the first bytes. Raises FileCutError."""
        self.check()
        self[: data.nbytes] = data
        self.confirm()


Identity = tuple[int, ...]
"""The identity of shared memory, independent of descriptors."""
