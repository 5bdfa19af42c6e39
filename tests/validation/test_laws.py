"""The replay of one table row, also for tables that are not shipped, with rows made up here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from npusim.validate.arrays import gemmini, nvdla
from npusim.validate.base import DataPoint, DataRow, Excluded, read
from npusim.validate.dram import DRAMSIM3, AccessPattern, dramsim3, patterns
from npusim.validate.intel import dma
from npusim.validate.tpu import matmul_v4, vector

Law = Callable[[Sequence[DataRow], Path], Iterator[DataPoint | Excluded]]
Apply = Callable[..., list[DataPoint | Excluded]]


@pytest.fixture
def law(tmp_path: Path) -> Apply:
    """Return a function that applies a law to rows, given a header and the cells of each row."""

    def apply(kind: Law, *lines: str) -> list[DataPoint | Excluded]:
        path = tmp_path / "rows.csv"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        found = list(kind(read(path), tmp_path))
        assert len(found) == len(lines) - 1  # a row is a point or has a reason, and never both
        return found

    return apply


def predicted(rows: Sequence[DataPoint | Excluded]) -> list[float]:
    assert all(isinstance(row, DataPoint) for row in rows), rows
    return [row.predicted for row in rows if isinstance(row, DataPoint)]


def reasons(rows: Sequence[DataPoint | Excluded]) -> list[str]:
    return [row.reason for row in rows if isinstance(row, Excluded)]


def test_a_product_of_the_tpu_is_its_kernel_alone(law: Apply) -> None:
    header = "op,M,N,K,dtype,set,fusion_avg_us"
    found = law(
        matmul_v4, header, "matmul,256,256,256,bf16,1k,3", "matmul,256,256,256,f64,1k,3", "conv,256,256,256,bf16,1k,3"
    )
    assert found[0] == DataPoint("256x256x256 bf16", 3.0, pytest.approx(2.136895), "up to 1k")
    assert reasons(found[1:]) == ["no law for matmul f64", "no law for conv bf16"]


def test_a_kernel_of_the_vector_unit_to_the_picosecond(law: Apply) -> None:
    """One block is loaded and one stored; two operands move 1.5 times the bytes, two-byte elements half."""
    rows = ("add,128x128,1,1", "relu,128x128,1,1", "batch_norm_inference,128x128,1,1", "tanh,4096x4096,1,1")
    wanted = [1.169582, 1.071486, 0.974344, 203.725772]
    assert predicted(law(vector, "op,shape,avg_us,stable", *rows)) == pytest.approx(wanted, abs=1e-9)


def test_shapes_of_whole_lanes_cost_their_elements(law: Apply) -> None:
    shapes = ("256x256", "512x128", "65536", "256x2x128", "65x65536")
    whole = predicted(law(vector, "op,shape,avg_us,stable", *(f"add,{shape},1,1" for shape in shapes)))
    assert whole[:4] == [whole[0]] * 4
    assert whole[4] > 10 * whole[0]


def test_a_job_of_the_convolution_core(law: Apply) -> None:
    header = "name,lat,rd_cyc_per_beat,match,W,H,shared,P,Q,K,C,R,S,cycles,set"
    near, far, narrow, wrong = law(
        nvdla, header, "a,20,1,1,8,8,0,6,6,16,32,3,3,1000,conv", "b,90,1,1,8,8,0,6,6,16,32,3,3,1000,conv",
        "c,20,4,1,8,8,0,6,6,16,32,3,3,1000,conv", "d,20,1,0,8,8,0,6,6,16,32,3,3,1000,conv",
    )  # fmt: skip
    assert near == DataPoint("a latency 20 beat 1", 1000, 3371, "conv")
    assert predicted([near]) < predicted([far])
    assert predicted([near]) < predicted([narrow])
    assert reasons([wrong]) == ["match = 0: the outputs of the RTL were wrong"]


def test_a_product_on_the_mesh(law: Apply) -> None:
    header = "df,stall,ok,M,K,N,cycles"
    found = law(gemmini, header, "WS,0,1,16,16,16,100", "WS,1,1,16,16,16,100", "OS,0,0,16,16,16,100")
    assert predicted(found[:2]) == [65, 96]
    assert reasons(found[2:]) == ["ok = 0: the outputs of the RTL were wrong"]


def test_a_transfer_of_the_intel_npu_is_one_row(law: Apply) -> None:
    ways = ("64,DRAM,CMX", "65536,DRAM,CMX", "65536,CMX,DRAM", "65536,CMX,CMX", "65536,DRAM,DRAM")
    rows = [f"VPU_2_7,Sweep,{way},1" for way in ways]
    found = law(dma, "device,test,bytes,src,dst,gt_cycles_raw", *rows, "VPU_9,Sweep,64,DRAM,CMX,1")
    assert predicted(found[:5]) == [531, 2623, 2294, 4184, 2623]
    assert reasons(found[5:]) == ["no config for VPU_9"]


def test_a_memory_or_a_walk_that_nobody_has_described(law: Apply) -> None:
    header = "cfg,pattern,param,read_pct,outstanding,channels,achieved_gbs"
    name = "HBM2_8Gb_x128"
    known, memory, walk = law(
        dramsim3, header, f"{name}__rochrababgco,seq,0,100,32,1,10", "SRAM__rochrababgco,seq,0,100,32,1,10",
        f"{name}__rochrababgco,spiral,0,100,32,1,10",
    )  # fmt: skip
    assert name in DRAMSIM3
    assert known == DataPoint(
        f"{name} rochrababgco seq 0, 100 % reads, 32 outstanding", 10.0, pytest.approx(29.763115826), "seq"
    )
    assert reasons([memory, walk]) == ["no timings of SRAM", "how spiral walks is not documented"]


@pytest.mark.parametrize(
    ("pattern", "parameter", "addresses"),
    [
        ("seq", 0, [0, 64, 128, 192, 256, 320]),
        ("stride", 256, [0, 256, 512, 768, 1024, 1280]),
        ("streams", 2, [0, 2048, 64, 2112, 128, 2176]),
        ("streams", 3, [0, 1344, 2688, 64, 1408, 2752]),
        ("streamsoff", 2, [0, 2048, 64, 2112, 128, 2176]),  # shifted by 8192 bytes, twice round this memory
    ],
)
def test_walks(pattern: str, parameter: int, addresses: list[int]) -> None:
    assert patterns(AccessPattern(pattern, parameter, 6, 64, 4096)).tolist() == addresses


def test_walks_of_tiles_and_blocks() -> None:
    """A line of a tile has 1024 bytes; blocks start at multiples of their size."""
    tile = patterns(AccessPattern("tile2d", 4096, 18, 64, 1 << 20)).tolist()
    assert tile == [64 * turn for turn in range(16)] + [4096, 4160]
    blocks = patterns(AccessPattern("rblk", 256, 7, 64, 1 << 20)).tolist()
    assert [address - blocks[0] for address in blocks[:4]] == [0, 64, 128, 192]
    assert [address - blocks[4] for address in blocks[4:]] == [0, 64, 128]
    assert blocks[0] % 256 == blocks[4] % 256 == 0
    assert blocks[0] != blocks[4]
