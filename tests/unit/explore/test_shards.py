"""Shards of a study, their merge, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from npusim.errors import UsageError
from npusim.explore import Study
from npusim.explore.figures import StudyRow
from npusim.explore.shards import StudyShard
from npusim.explore.store import StudyStore
from tests.support.explore_designs import Synthetic, large_space, space, synthetic_area

VARY = {"matrix.rows": [4, 8, 16, 32], "matrix.cols": [4, 8, 16], "sram.bytes": ["128 KiB", "256 KiB"]}


def small(store: Path | None = None, vary: Mapping[str, Any] = VARY, **more: Any) -> Study:
    found = space(vary, constraints=["area <= 1.6 mm2"])
    return Study(found, store=store, evaluate=Synthetic(), area=synthetic_area, **more)


def adaptive(store: Path | None = None) -> Study:
    found = large_space(5, objectives=["latency", "area"], search={"budget": 40})
    return Study(found, store=store, evaluate=Synthetic(), area=synthetic_area)


def shards(tmp_path: Path, count: int, make: Any = small) -> list[Path]:
    """Run every shard and return the stores."""
    paths = [tmp_path / f"{index}.study" for index in range(1, count + 1)]
    for index, path in enumerate(paths, 1):
        with make(path) as study:
            study.run(workers=0, shard=StudyShard(index, count))
    return paths


@pytest.mark.parametrize("count", [1, 3, 10, 30])
def test_merged_shards_are_one_study_in_any_order(tmp_path: Path, count: int) -> None:
    paths = shards(tmp_path, count)
    one = small().run(workers=0).rows
    parts = [Study(space(VARY), store=path, evaluate=Synthetic(), reading=True).rows for path in paths]
    assert sum(map(len, parts)) == len(one) > count // 2  # the constraint excludes some of 24
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for order in (paths, paths[::-1], paths[1::2] + paths[::2]):
        (tmp_path / "whole.study").unlink(missing_ok=True)
        with small(tmp_path / "whole.study") as whole:
            assert whole.merge(order).rows == one
        with small(tmp_path / "whole.study", reading=True) as again:
            assert again.rows == one


def test_shards_of_an_adaptive_search_are_its_first_round_and_the_merged_study_does_the_rest(tmp_path: Path) -> None:
    paths = shards(tmp_path, 3, adaptive)
    one = adaptive().run(workers=0)
    with adaptive(tmp_path / "whole.study") as whole:
        first = dict(whole.merge(paths).rows)
        assert 0 < len(first) < len(one.rows)
        assert whole.run(workers=0).rows == one.rows
        assert first.items() <= one.rows.items()


def test_a_search_whose_designs_depend_on_all_rows_has_no_shards() -> None:
    study = Study(space(VARY, search={"method": "optuna"}), evaluate=Synthetic(), area=synthetic_area)
    with pytest.raises(UsageError, match=r'--shard: not with search.method = "optuna"'):
        study.run(workers=0, shard=StudyShard(1, 2))


@pytest.mark.parametrize("text", ["", "3", "0/2", "3/2", "1/0", "a/2", "1/2/3", "-1/2", "1/99999999", "1 / 2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard: must be I/N"):
        StudyShard.parse(text)


def test_stores_of_another_study_are_refused_and_nothing_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, *_ = shards(tmp_path, 2)
    small(tmp_path / "other.study", {**VARY, "matrix.rows": [4, 8]}).close()
    with monkeypatch.context() as patched:
        patched.setattr("npusim.explore.study.build", lambda: {"source": "another"})
        small(tmp_path / "built.study").close()
    with small() as whole:
        for name, reason in (("other", "space"), ("built", "versions: source was 'another'")):
            with pytest.raises(UsageError, match=f"{name}.study: was made for another study: {reason}"):
                whole.merge([good, tmp_path / f"{name}.study"])
        with pytest.raises(UsageError, match=r"none\.study: no such file"):
            whole.merge([good, tmp_path / "none.study"])
        assert not whole.rows


def test_overlapping_rows_must_be_equal(tmp_path: Path) -> None:
    paths = shards(tmp_path, 2)
    with small() as whole:
        assert whole.merge([*paths, paths[0]]).rows == small().run(workers=0).rows
    with StudyStore(paths[0], reading=True) as store:
        facts, row = store.facts(), store.rows()[0]
    figures = dataclasses.replace(row.figures[0], latency=row.figures[0].latency + 1)
    with StudyStore(tmp_path / "wrong.study") as store:
        store.tell(facts)
        store.add([dataclasses.replace(row, figures=(figures,))])
    for order in ([paths[0], tmp_path / "wrong.study"], [tmp_path / "wrong.study", paths[0]]):
        with small() as whole, pytest.raises(UsageError) as error:
            whole.merge(order)
        assert f"{order[1]}: design {row.number}: differs from that in {order[0]} in latency(none)" in str(error.value)


def test_rows_of_others_need_trust_and_are_signed_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("NPUSIM_STATE_DIR", str(tmp_path / "elsewhere"))
        paths = shards(tmp_path, 2)
    with (
        small(tmp_path / "whole.study") as whole,
        pytest.raises(UsageError, match="not written by npusim of this user"),
    ):
        whole.merge(paths)
    with small(tmp_path / "whole.study", trust=True) as whole:
        whole.merge(paths)
    with small(tmp_path / "whole.study") as whole:
        assert whole.rows == small().run(workers=0).rows


def test_a_trusted_row_of_another_design_is_refused(tmp_path: Path) -> None:
    (path,) = shards(tmp_path, 1)
    with StudyStore(path) as store:
        row = store.rows()[0]
        store._file.execute("UPDATE designs SET base = 'other' WHERE number = ?", (row.number,))
    with small(trust=True) as whole, pytest.raises(UsageError, match=f"design {row.number}: is another design"):
        whole.merge([path])


def test_a_study_is_read_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.study"
    with small(path, reading=True) as early:
        assert early.run(workers=0, budget=0).rows == {}
        assert f"{path}: no such store yet" in early.notes[-1]
    assert not path.exists()
    read: list[dict[int, StudyRow]] = []

    def look(done: int, total: int) -> None:
        with small(path, reading=True) as reader:
            read.append(reader.run(workers=0, budget=0).rows)

    with small(path) as writer:
        writer.run(workers=0, budget=5, progress=look)
        assert [len(rows) for rows in read] == list(range(6))
        assert read[-1] == writer.rows
        with pytest.raises(UsageError, match="another study is writing"):
            small(path)
    with small(path, reading=True) as reader, pytest.raises(UsageError, match="opened for reading; budget must be 0"):
        reader.run(workers=0)
