"""Points of what-if that are kept between calls, by device: in a store as that of a study, in the cache directory."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npusim.errors import UsageError
from npusim.explore.figures import SIMULATED, StudyRow
from npusim.explore.measure import Measurer
from npusim.explore.store import WHATIF, StudyStore
from npusim.explore.study import SUFFIX, versions
from npusim.explore.whatif import WhatIfPoint
from npusim.hw.config import Config

_log = logging.getLogger("npusim.cache")


class KeptMeasurer:
    """Measures devices that the store does not have. ``progress``: called with (known points, devices).

    ``folder`` None: nothing is kept. As for the cache of programs, a store that cannot be used is reported as a warning
    and not used. Only points are kept: a reason why there is none may depend on the machine.
    """

    def __init__(self, measurer: Measurer, folder: Path | None) -> None:
        self._measurer, self._folder = measurer, folder
        self.progress: Callable[[int, int], object] = lambda done, total: None
        self.kept = 0
        """Number of points in the store of the devices so far."""

    def __call__(self, devices: Sequence[Config]) -> list[WhatIfPoint | str]:
        points: dict[str, WhatIfPoint | str] = {}
        with contextlib.ExitStack() as stack:
            store, known = self._opened(stack, devices[0]) if self._folder is not None and devices else (None, {})
            points = {name: known[name] for each in devices if (name := each.fingerprint()) in known}
            missing = [each for each in devices if each.fingerprint() not in points]
            self.kept = len(points)
            self.progress(len(points), len(devices))
            for device, point in zip(missing, self._measurer.points(missing), strict=True):
                points[device.fingerprint()] = point
                if store is not None and isinstance(point, WhatIfPoint):
                    store.add([_row(device, point)])
                    self.kept += 1
                self.progress(len(points), len(devices))
        return [points[each.fingerprint()] for each in devices]

    def _opened(
        self, stack: contextlib.ExitStack, config: Config
    ) -> tuple[StudyStore | None, Mapping[str, WhatIfPoint]]:
        """The store of this model and its points by the fingerprint of the device."""
        assert self._folder is not None
        described = {name: value for name, value in self._measurer.described(config).items() if name != "file"}
        model = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        path = self._folder / f"{WHATIF}{model[:32]}{SUFFIX}"
        about = {"whatif": model, "versions": versions()}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            store = StudyStore(path)
            if store.facts() not in ({}, about):  # points of another build
                store.close()
                path.unlink()
                store = StudyStore(path)
            stack.enter_context(store)
            if not store.facts():
                store.tell(about)
            return store, dict(map(_point, store.rows()))
        except (UsageError, OSError) as error:
            _log.warning("%s; results are not kept", error)
            return None, {}


def _row(device: Config, point: WhatIfPoint) -> StudyRow:
    fingerprint = device.fingerprint()
    return StudyRow(
        int(fingerprint[:15], 16), device.name, {"point": dataclasses.asdict(point)}, fingerprint, SIMULATED
    )


def _point(row: StudyRow) -> tuple[str, WhatIfPoint]:
    kept: dict[str, Any] = dict(row.settings["point"])
    kept["binds"] = tuple(((unit, cause), ps) for (unit, cause), ps in kept["binds"])
    kept["resources"] = tuple((name, ps) for name, ps in kept["resources"])
    return row.fingerprint, WhatIfPoint(**kept)
