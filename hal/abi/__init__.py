"""Paths and compiler options of the installed shared libraries for clients in C."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library. ``name``: for ``-l``. ``header``: none for a plug-in, which clients load and do not link.
    ``defines``: the macros that its header needs."""

    name: str
    folder: Path
    header: str
    what: str
    defines: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The path of the file, whether or not it has been built."""
        return self.folder / f"lib{self.name}.so"

    @property
    def cflags(self) -> str:
        """Flags to compile a client."""
        if not self.header:
            return ""
        return " ".join([f"-I{INCLUDE}", *(f"-D{define}" for define in self.defines)])

    @property
    def ldflags(self) -> str:
        """Flags to link a client that finds the library where it is now."""
        return f"-L{self.folder} -l{self.name} -Wl,-rpath,{self.folder}" if self.header else ""


INCLUDE = HERE / "include"
LIB = HERE / "lib"
# The flavour has a separate folder: loaders that open every libonnxifi-*.so of a folder expect the same layout in all.
LIBRARIES = (
    Library("onnxifi-npusim", LIB, "onnxifi.h", "ONNXIFI, tensor descriptors of 96 bytes"),
    Library(
        "onnxifi-npusim-v1", LIB / "v1", "onnxifi.h", "ONNXIFI, tensor descriptors of 56 bytes", ("ONNXIFI_NPUSIM_V1",)
    ),
    Library("neuralnetworks", LIB, "NeuralNetworks.h", "the NNAPI C API"),
    Library("npusim-ort", LIB, "", "an execution provider of ONNX Runtime, to be registered by its path"),
)
