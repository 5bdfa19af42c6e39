"""The interface of runs for reports. ``npusim.runtime.Result`` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from npusim.bottleneck import Bottleneck
from npusim.energy import Energy
from npusim.graph import HostPart
from npusim.hw.config import Config
from npusim.occupancy import Occupancy
from npusim.summary import OpReport
from npusim.timeline import Counters, Timeline


def flattened(outputs: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Outputs by name; the tensors of a sequence each under its name and number, nothing for an absent value."""
    found: dict[str, npt.NDArray[Any]] = {}
    for name, output in outputs.items():
        if isinstance(output, list):
            found |= {f"{name}.{number}": array for number, array in enumerate(output)}
        elif output is not None:
            found[name] = output
    return found


class DecisionTotals(Protocol):
    """The host between the programs of a run, see ``npusim.runtime.result.HostDecisions``."""

    @property
    def count(self) -> int:
        """Number of decisions."""

    @property
    def time_ps(self) -> int:
        """Their time."""

    @property
    def transfer_ps(self) -> int:
        """Time of transfers and submissions between programs."""

    @property
    def runs(self) -> int:
        """Number of runs of programs."""

    @property
    def steps(self) -> Sequence[tuple[str, str, int, int]]:
        """(name, kind, decisions, time in ps) of each step that the host executed."""


class ReportedRun(Protocol):
    """One run; empty ``outputs`` after a run without arithmetic."""

    @property
    def model(self) -> str:
        """The name of the model."""

    @property
    def config(self) -> str:
        """The name of the device."""

    @property
    def outputs(self) -> Mapping[str, npt.NDArray[Any]]:
        """Arrays by output name; empty after a run without arithmetic."""

    @property
    def cycles(self) -> int:
        """Duration in cycles of the device clock."""

    @property
    def time_ps(self) -> int:
        """Duration in picoseconds."""

    @property
    def host_part(self) -> HostPart:
        """The operators that the host computed, and its decisions."""

    @property
    def host_work_ps(self) -> int:
        """Duration of the host's operators in picoseconds."""

    @property
    def decisions(self) -> DecisionTotals | None:
        """The decisions of the host between programs; None if the model is one program."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of pinned weights."""

    @property
    def timeline(self) -> Timeline:
        """The timeline of the job."""

    @property
    def counters(self) -> Counters:
        """The counters of the job by unit."""

    @property
    def ops(self) -> Sequence[OpReport]:
        """One summary per operator with instructions."""

    @property
    def memory(self) -> Sequence[Occupancy]:
        """The occupancy of each memory over time."""

    @property
    def energy(self) -> Energy:
        """The energy by action, unit and operator."""

    @property
    def bottleneck(self) -> Bottleneck:
        """The resources that the run waited for."""

    @property
    def macs(self) -> int:
        """The number of multiply-accumulates."""

    @property
    def matrix_utilization(self) -> float:
        """MACs divided by the MACs that were possible in the total time."""

    @property
    def compile_from_cache(self) -> bool:
        """Whether the program came from the cache."""

    @property
    def made_for(self) -> Config | None:
        """The device that the program was compiled for, if it is another one."""

    @property
    def made_elsewhere(self) -> Mapping[str, tuple[str, str]]:
        """Keys that differ from that device: (its value, the value here)."""
