"""ONNX models: ``load`` turns a file, bytes or a ModelProto into a Graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npusim.errors import ModelError, NeedsValueError, OpenInputsError, UsageError
from npusim.graph import Graph

if TYPE_CHECKING:
    from npusim.frontends.onnx.source import Source
    from npusim.hw.config import Config

__all__ = ["check_installed", "input_names", "load", "shapes_of"]


def load(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    bind: Mapping[str, Any] | None = None,
    arrays: Mapping[str, Any] | None = None,
    config: Config | None = None,
    timing_only: bool = False,
) -> Graph:
    """Import an ONNX model, of operator sets from 1 to the newest known to the installed onnx package.

    ``source``: a path, the bytes of a model, or a ModelProto. ``input_shapes``: fixes open dimensions. ``bind``: turns
    inputs into constants: arrays or numbers by name. ``arrays``: inputs of the run for which the graph is made, by
    name. Their values determine shapes, branches and loops, see ``Graph.host``, and are not folded otherwise. Constants
    of the graph are views of the input bytes if possible; large ones in files next to the model are views of these (see
    ``npusim.weights``). ``config``: the target device, whose memory limits the import. ``timing_only``: the graph will
    not be computed. Weights are then only read if they affect compilation, and other weight files may be missing.

    Raises UsageError for a file that cannot be read, ModelError for a damaged model, OpenInputsError with suitable
    sizes for open input shapes, UnsupportedError with every unsupported (node, operator, reason), NeedsValueError if
    binding inputs would help, CompileError for a model that exceeds the limits.
    """
    check_installed()
    from npusim.frontends.onnx import source as reader
    from npusim.frontends.onnx.importer import Importer
    from npusim.ops.budget import Budget

    model = reader.read(source, config.dram.bytes if config else None, timing_only=timing_only)
    try:
        graph = Importer(model, input_shapes, bind, Budget.of(config) if config else None, arrays).run()
        if model.files is not None:
            model.files.check()  # folded constants are not in the graph any more
        return graph
    except OpenInputsError as error:
        from npusim.frontends.onnx.plausible import with_examples

        raise with_examples(error, model, input_shapes or {}, bind or {}) from None
    except NeedsValueError as error:
        from npusim.frontends.onnx.plausible import with_values

        # Read again, because the weights have been released.
        again = reader.read(source, config.dram.bytes if config else None, timing_only=timing_only)
        raise with_values(error, again, input_shapes or {}, bind or {}) from None
    except ModelError as error:
        if not input_shapes:
            raise
        # If an operator inside the model does not fit, the size of an input is usually wrong.
        shapes = ", ".join(f"{name!r} is {list(shape)}" for name, shape in input_shapes.items())
        raise ModelError(f"{error}; input {shapes}") from error


def input_names(source: Source) -> list[str]:
    """The names of the required inputs of a model."""
    return [value.name for value in _inputs(source)]


def shapes_of(
    source: Source,
    arrays: Mapping[str, Any],
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    bind: Mapping[str, Any] | None = None,
) -> dict[str, tuple[int, ...]]:
    """``input_shapes`` with the shapes of the arrays added for inputs with open dimensions.

    Raises InputError unless each unbound input has an array of the declared type and shape. Dimensions with the same
    name must have the same size.
    """
    from npusim.frontends.onnx.signature import open_shapes

    return open_shapes(_inputs(source), arrays, input_shapes or {}, bind or {})


def _inputs(source: Source) -> list[Any]:
    check_installed()
    from npusim.frontends.onnx import source as reader
    from npusim.frontends.onnx.signature import free_inputs

    return free_inputs(reader.read(source).proto.graph)


def check_installed() -> None:
    """Raise UsageError without the onnx package."""
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("onnx", "google"):
            raise
        raise UsageError("reading ONNX models needs the onnx package: pip install 'npusim[onnx]'") from None
