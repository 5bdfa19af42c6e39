"""Replays of convolutions on whole chips, and of language models: time to the first token, and time per token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.runtime import Session
from npusim.validate.base import DataPoint, DataRow, DataSet, Excluded, machine
from npusim.validate.networks.build import Net
from npusim.validate.networks.language import DECODERS, decoder

_CHIPS = {"Rockchip RK3588 (3 cores)": "rk3588", "Kendryte K210 KPU 300 MHz": "k210"}
_CONV = re.compile(r"conv ([0-9]+)x([0-9]+) ([0-9]+)->([0-9]+) ([0-9]+)x([0-9]+)")
_FIRST = re.compile(r"TTFT, ([0-9]+) tokens")
_NEW = re.compile(r"([0-9]+) new tokens")
_PROMPT = 128
"""Tokens before those that are generated, as in the rows of the time to the first token."""
_FEW, _MORE = 2, 4
"""Layers of the decoders that are simulated. All layers are equal, so the others take the difference."""


def rows(records: Sequence[DataRow], _: Path) -> Iterator[DataPoint | Excluded]:
    """Milliseconds of a layer, of the first token, or of each later token."""
    for record in records:
        name, network, metric = record.text("chip"), record.text("network"), record.text("metric")
        label = f"{name}: {network}, {metric}"
        if name not in _CHIPS:
            yield Excluded(label, "no config of such a machine")
            continue
        # The memory of the host is no part of the chip.
        config = machine(_CHIPS[name]).with_(**{"host.compile_bytes": 1 << 36})
        conv, first = _CONV.fullmatch(network), _FIRST.fullmatch(metric)
        if conv is not None:
            kh, kw, channels, kernels, h, w = map(int, conv.groups())
            net = Net("layer")
            taken = _milliseconds(config, net.finish(net.conv(net.input(1, h, w, channels), kernels, (kh, kw))))
        elif network.lower() not in DECODERS:
            yield Excluded(label, "no graph of that name")
            continue
        elif first is not None:
            taken = _tokens(config, network.lower(), int(first[1]), 0)
        else:
            # The mean over the generated tokens: the one in the middle.
            new = _NEW.search(record.text("notes", "0 new tokens"))
            taken = _tokens(config, network.lower(), 1, _PROMPT + (int(new[1]) // 2 if new else 0))
        value = record.number("value")
        measured = record.one_of("unit", {"ms": value, "tokens/s": 1e3 / value})
        yield DataPoint(label, measured, taken, f"{name}{'' if conv else ', first token' if first else ', decode'}")


def _milliseconds(config: Config, graph: Graph) -> float:
    with Session(config, cache_dir=False) as session:
        return session.run(session.compile(graph), timing_only=True).total_ps / 1e9


@lru_cache(64)
def _tokens(config: Config, network: str, tokens: int, past: int) -> float:
    sizes = DECODERS[network]
    few, more = (
        _milliseconds(config, decoder(replace(sizes, layers=layers), tokens, past)) for layers in (_FEW, _MORE)
    )
    return few + (more - few) * (sizes.layers - _FEW) / (_MORE - _FEW)


SETS = (DataSet("end_to_end_2", "ms", tuple(_CHIPS.values()), rows, every=True),)
