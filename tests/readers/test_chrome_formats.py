"""Chrome's JSON of other profilers: Ascend, rocprof, Horovod, Composer; and Chakra's, which is no timeline."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from support import chrome_builder as build
from support.kineto_builder import event, step, trace, write

from kair_engine.errors import InputError
from kair_engine.readers.formats import UnsupportedFormatError, detect_format
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import Finding
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage


def first_step(trace: Trace, rank: int = 0) -> dict[str, dict[str, object]]:
    rows = trace.scan().with_columns(pl.col("kind", "phase", "name", "lane").cast(pl.String)).collect()
    chosen = rows.filter((pl.col("step") == trace.steps[0]) & (pl.col("rank") == rank))
    return {row["name"]: row for row in chosen.iter_rows(named=True)}


def accused(trace: Trace) -> Finding:
    (finding,) = (one for one in triage(trace).findings if one.ranks)
    return finding


@pytest.mark.slow
def test_ascend_s_traces(tmp_path: Path) -> None:
    for rank in range(4):
        build.ascend(tmp_path / "job", rank, late=100 if rank == 1 else 0)
    found = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    job = found.job
    assert (job.format, job.ranks, job.steps, job.warnings) == ("ascend", (0, 1, 2, 3), tuple(range(3, 11)), ())
    assert (job.absolute_time, job.device) == (True, "Ascend NPU")
    rows = first_step(found)
    assert (rows["aclnnMatmul_MatMulV2"]["kind"], rows["aclnnMatmul_MatMulV2"]["lane"]) == ("compute", "stream 7")
    # A number of its own on every call would match nothing; its parts are no collectives.
    assert (rows["hcom_allReduce"]["kind"], "Notify_Wait" in rows) == ("collective", False)
    assert rows["aclnnMatmul_MatMulV2"]["start_ns"] == build.EPOCH_US * 1000 + 40_250
    finding = accused(found)
    assert (finding.ranks, finding.cause, finding.operator) == ((1,), "compute", "aclnnMatmul_MatMulV2")


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [(), ("msprof",), ("hccl",), ("msprof", "step_trace")], ids=str)
def test_the_pieces_of_a_device_are_one_rank_s(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    """Whichever of the files that hold the same are there."""
    for device in range(4):
        timeline = build.msprof(tmp_path / "job", device, late=100 if device == 1 else 0)
        for kind in left_out:
            for path in timeline.glob(f"{kind}_*"):
                path.unlink()
    found = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    job = found.job
    assert (job.format, job.ranks, job.steps, job.warnings) == ("ascend", (0, 1, 2, 3), tuple(range(1, 9)), ())
    assert (job.hosts[1], job.identity[1].pid) == ("npu-0", 4001)
    rows = first_step(found)
    assert {name: row["kind"] for name, row in rows.items() if row["kind"] != "scope"} == {
        "MatMul-op3": "compute",
        "Default/AllReduce-op534": "collective",
        "Adam-op4": "compute",
    }, "neither what a collective is made of nor what waits for it is work"
    finding = accused(found)
    assert (finding.ranks, finding.cause, finding.operator) == ((1,), "compute", "MatMul-op3")


@pytest.mark.slow
def test_slices_of_one_recording_are_read_as_one(tmp_path: Path) -> None:
    """As newer versions of msprof cut them by size, beside the folder of the device that they are of."""
    for device in range(4):
        pieces = sorted(build.msprof(tmp_path / "pieces", device, late=100 if device == 1 else 0).glob("msprof_*"))
        recording = tmp_path / "job" / f"PROF_{device}"
        (recording / f"device_{device}" / "data").mkdir(parents=True)
        (recording / "mindstudio_profiler_output").mkdir()
        for at, piece in enumerate(pieces):
            name = f"msprof_slice_{at}_20260314093042.json"
            (recording / "mindstudio_profiler_output" / name).write_bytes(piece.read_bytes())
    found = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    assert (found.job.ranks, found.job.steps, found.job.warnings) == ((0, 1, 2, 3), tuple(range(1, 9)), ())
    assert accused(found).ranks == (1,)


def test_iterations_of_msprof_last_until_the_next_one(tmp_path: Path) -> None:
    build.msprof(tmp_path / "job", 0, steps=3)
    times = open_trace(tmp_path / "job", cache=tmp_path / "cache").job.step_times
    assert times.duration_ns == (1_000_000, 1_000_000, 950_000)


@pytest.mark.slow
def test_a_device_s_information_tells_the_rank(tmp_path: Path) -> None:
    """Of a second host the devices begin at 0 again; a job without ranks tells 0 for each of them."""
    for device in range(2):
        build.msprof(tmp_path / "host", device, rank=device + 2)
        build.msprof(tmp_path / "alone", device, rank=0)
    assert open_trace(tmp_path / "host", cache=tmp_path / "cache").job.ranks == (2, 3)
    assert open_trace(tmp_path / "alone", cache=tmp_path / "cache").job.ranks == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [build.rocprof_hip, build.rocprofv3])
def test_rocprof_s_traces(tmp_path: Path, make: Callable[..., Path]) -> None:
    for rank in range(4):
        late = 100 if rank == 3 else 0
        make(tmp_path / "job" / f"results_rank{rank}.json", late=late * (1000 if make is build.rocprofv3 else 1))
    found = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    job = found.job
    assert (job.format, job.ranks, job.steps, job.warnings) == ("rocprof", (0, 1, 2, 3), tuple(range(8)), ())
    rows = first_step(found)
    assert rows["Cijk_Ailk_Bljk_SB"]["kind"] == "compute"
    assert rows["ncclDevKernel_Generic(ncclDevComm*)"]["kind"] == "collective"
    assert rows["Memcpy HtoD" if make is build.rocprofv3 else "Memcpy"]["kind"] == "memory"
    finding = accused(found)
    assert (finding.ranks, finding.cause, finding.operator) == ((3,), "compute", "Cijk_Ailk_Bljk_SB")


def test_rocprofv3_links_kernels_to_their_launches(tmp_path: Path) -> None:
    found = open_trace(build.rocprofv3(tmp_path / "rank0.json"), cache=tmp_path / "cache")
    rows = first_step(found)
    assert found.job.device == "AMD Instinct MI300X"
    assert rows["Memcpy HtoD"]["bytes"] == 4096
    launches = {row["correlation"] for row in rows.values() if row["name"] == "hipLaunchKernel"}
    assert rows["Cijk_Ailk_Bljk_SB"]["correlation"] in launches | {0, 2}


def test_rocprofv3_s_damaged_texts_are_left_out(tmp_path: Path) -> None:
    source = build.rocprofv3(tmp_path / "rank0.json")
    document = json.loads(source.read_text())
    texts = document["rocprofiler-sdk-tool"][0]["strings"]["marker_api"]
    texts += [7, [], None, {"key": []}, {"key": {}, "value": "step 99"}, {"key": 19, "value": ["step 98"]}]
    source.write_text(json.dumps(document))
    assert open_trace(source, cache=tmp_path / "cache").job.steps == tuple(range(8))


def test_horovod_s_timeline_holds_all_ranks(tmp_path: Path) -> None:
    found = open_trace(build.horovod(tmp_path / "timeline.json", slow=2), cache=tmp_path / "cache")
    job = found.job
    assert (job.format, job.ranks, job.world_size, len(job.steps)) == ("horovod", (0, 1, 2, 3), 4, 7)
    assert [warning.code for warning in job.warnings] == ["steps_inferred"]
    rows = first_step(found, rank=2)
    reduced = rows["allreduce grads.dense"]
    assert (reduced["kind"], reduced["duration_ns"]) == ("collective", (4 + 4001 - 2) * 1000)
    result = triage(found)
    assert result.verdict == "straggler"
    assert {rank for finding in result.findings for rank in finding.ranks} == {2}


def test_composer_s_traces(tmp_path: Path) -> None:
    for rank in range(4):
        build.composer(tmp_path / "job" / f"ep0-ba8-rank{rank}.json", rank, input_us=220 if rank == 1 else 20)
    found = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    assert (found.job.format, found.job.ranks, found.job.steps) == ("composer", (0, 1, 2, 3), tuple(range(8)))
    rows = first_step(found)
    assert (rows["dataloader/train"]["kind"], rows["event/forward"]["phase"]) == ("input", "forward")
    # All leave it together, which is what tells who came last to it.
    assert rows["event/backward"]["kind"] == "collective"
    finding = accused(found)
    assert (finding.ranks, finding.cause) == ((1,), "input")


def test_a_step_at_a_time_that_no_clock_reads_is_none(tmp_path: Path) -> None:
    source = build.composer(tmp_path / "rank0.json", 0)
    source.write_text(source.read_text().replace(str(build.EPOCH_US + 2000), "9" * 17, 1))
    assert len(open_trace(source, cache=tmp_path / "cache").job.steps) == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("host_et.json", '{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "x", "nodes": [{"id": 1, "name": "a"}]}'),
        ("old_et.json", '{"schema": "1.0.1", "pid": 1, "nodes": [{"id": 1, "name": "aten::mm"}]}'),
    ],
)
def test_chakra_s_execution_traces_are_named(tmp_path: Path, name: str, text: str) -> None:
    for padding in ("", " " * 80_000):
        (tmp_path / name).write_text(text.replace('"pid"', padding + '"pid"') if not padding else text + padding)
        with pytest.raises(UnsupportedFormatError, match="Chakra") as found:
            detect_format(tmp_path / name)
        assert "Kineto" in (found.value.hint or "")


def test_mtia_s_kernels_are_a_device_s(tmp_path: Path) -> None:
    rows = [step(1, 0, 900), event("fused_mm", "mtia_ccp_events", 20, 300, pid=0, tid=3)]
    rows += [event("mtia_launch", "mtia_runtime", 5, 4, correlation=4)]
    found = open_trace(write(tmp_path / "rank0.json", trace(rows)), cache=tmp_path / "cache")
    assert first_step(found)["fused_mm"]["lane"] == "stream 3"
    assert found.job.has_device


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda path: build.ascend(path, 0),
        lambda path: build.rocprof_hip(path / "a.json"),
        lambda path: build.rocprofv3(path / "a.json"),
        lambda path: build.horovod(path / "a.json"),
        lambda path: build.composer(path / "a.json", 0),
    ],
    ids=["ascend", "rocprof", "rocprofv3", "horovod", "composer"],
)
def test_damaged_files_give_an_answer_or_one_line(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    source, chance = make(tmp_path / "whole"), random.Random(13)
    content = source.read_bytes()
    answered = 0
    for number in range(40):
        text = bytearray(content[: chance.randrange(1, len(content))] if number % 3 == 0 else content)
        for _ in range(chance.randrange(1, 6)):
            text[chance.randrange(len(text))] = chance.randrange(256)
        if number % 5 == 0:
            text = bytearray(
                json.dumps(json.loads(content.rstrip(b", \n") + b"]" * (b"NEGOTIATE" in content))).encode()
            )
            text = text.replace(b'"pid": 1', b'"pid": [null, {}]').replace(b'"ts": ', b'"ts": -').replace(b"44", b"{}")
        source.write_bytes(text)
        try:
            open_trace(source, cache=tmp_path / str(number))
            answered += 1
        except InputError as error:
            assert "\n" not in str(error)
    assert answered > 0
