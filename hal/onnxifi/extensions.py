"""Names of the functions beyond the 15 of the specification, for onnxGetExtensionFunctionAddress."""

from __future__ import annotations

EXTENSIONS = (
    "onnxSetIOAndRunGraphFunction",
    "onnxWaitEventForFunction",
    "onnxReleaseTraceEventsFunction",
    "npusimGetRunTimingFunction",
    "npusimInjectFunction",
    "npusimUnplugFunction",
    "npusimPlugFunction",
)
