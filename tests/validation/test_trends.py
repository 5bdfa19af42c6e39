"""Published sensitivities: N. Jouppi et al., "In-Datacenter Performance Analysis of a Tensor Processing Unit", ISCA
2017, section 7 and figure 11.

Four times the bandwidth makes MLPs and LSTMs, which are bound by weights, about three times as fast; four times the
clock has almost no effect on them.
"""

from math import isqrt

import pytest

import npusim
from npusim.validate.networks.small import perceptron

MACHINE = npusim.load_config("tpuv1")


@pytest.mark.parametrize(
    ("batch", "weights", "layers"), [(168, 5 * 10**6, 4), (96, 34 * 10**6, 56)], ids=["MLP1", "LSTM1"]
)
def test_networks_of_weights_follow_the_bandwidth_and_not_the_clock(batch, weights, layers):
    # Shapes are not published: equal square layers. A fourth of the layers shows the same as all of them.
    graph = perceptron(batch, (isqrt(weights // layers),) * 2, max(4, layers // 4))
    as_it_is = taken(MACHINE, graph)
    wide = MACHINE.with_(**{"dram.bandwidth": 4 * MACHINE.dram.bandwidth})
    assert 2.5 < as_it_is / taken(wide, graph) < 4
    assert as_it_is / taken(
        MACHINE.with_(**{"clock": 4 * MACHINE.clock_hz, "technology.any_clock": True}), graph
    ) == pytest.approx(1, abs=0.06)


def taken(config, graph):
    session = npusim.Session(config, cache_dir=False)
    return session.run(session.compile(graph), timing_only=True).time_ps
