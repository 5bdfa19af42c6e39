"""The laws of the compiler, on a few random layers for each law; ``python -m bench.laws`` measures many."""

from random import Random

import pytest

from npusim.hw.config import list_configs
from tests.support.devices import EACH_MODEL
from tests.support.laws.devices import RANDOM, device
from tests.support.laws.laws import LAWS

DEVICES = [
    *(pytest.param(name, marks=[] if name in EACH_MODEL else [pytest.mark.slow]) for name in list_configs()),
    RANDOM,
]


BROKEN = {"networks_on_cores": "layers that are cut for several cores are in no cascade"}
"""Laws that are known to be broken on some devices, and why."""


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    "law",
    [
        pytest.param(law, marks=[pytest.mark.xfail(reason=BROKEN[law], strict=False)] if law in BROKEN else [])
        for law in LAWS
    ],
)
def test_law(law: str, name: str) -> None:
    rng = Random(f"{law} {name}")
    cases = (LAWS[law].case(rng, device(name, rng)) for _ in range(20))
    case = next((case for case in cases if case is not None), None)
    if case is None:
        pytest.skip("the device has no such layers")
    ratio, figures = case.verdict()
    assert ratio <= 1, f"{case.text}: {figures}"
