"""Kinds of hangs and deaths in logs: whom each accuses, and what it quotes; no case may need a rule of its own."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from kinds import in_words
from kinds import triage as run
from support.cli_samples import kair
from support.job_logs import all_timed_out, nccl_init, timed_out, traceback
from support.log_kinds import KINDS, NOBODY, SEVEN, WORLD

from kair_engine.errors import InputError
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult


def judged(lines: Sequence[str], folder: Path, name: str = "job.log") -> tuple[TriageResult, str]:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    trace = open_trace(path, cache=folder / "cache", workers=1)
    result = run(trace)
    warned = [one.message for one in (*trace.job.warnings, *result.warnings)]
    return result, "\n".join((in_words(result), *warned))


def accused(result: TriageResult) -> list[int]:
    return sorted({int(rank) for finding in result.findings for rank in finding.ranks})


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kind_names_whom_it_should(kind: str, tmp_path: Path) -> None:
    lines, ranks, says = KINDS[kind]
    result, text = judged(lines, tmp_path)
    assert accused(result) == ranks, text
    assert result.verdict == "straggler"
    for pattern in says:
        assert re.search(pattern, text), (pattern, text)


@pytest.mark.parametrize("kind", list(NOBODY))
def test_a_kind_in_which_nobody_can_be_named(kind: str, tmp_path: Path) -> None:
    lines, says = NOBODY[kind]
    result, text = judged(lines, tmp_path)
    assert accused(result) == [] and result.verdict in ("inconclusive", "job_wide"), text
    for pattern in says:
        assert re.search(pattern, text), (pattern, text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "record",
    [
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-11-17T08:00:00.1Z"}),
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr"}, separators=(",", ":")),
        lambda line: json.dumps({"time": "x", "level": "error", "message": line, "kubernetes": {"pod": "a"}}),
        lambda line: json.dumps({"PRIORITY": "3", "MESSAGE": line}),
        lambda line: json.dumps({"preview": False, "result": {"_raw": line, "host": "node0"}}),
        lambda line: json.dumps({"textPayload": line, "severity": "ERROR"}),
        lambda line: f"2025-11-17T08:00:00.123456789Z stderr F {line}",
        lambda line: f"\x1b[31m{line}\x1b[0m",
        lambda line: f"  8%|# | 4/50 [00:01<00:10]\r{line}",
    ],
)
@pytest.mark.parametrize("length", [1, 4000])
def test_collectors_of_logs_are_unpacked(record: Callable[[str], str], length: int, tmp_path: Path) -> None:
    lines = [*WORLD, *(["step 1 loss 2.0"] * length), *all_timed_out(SEVEN, 220)]
    result, text = judged([record(line) for line in lines], tmp_path)
    assert accused(result) == [5], text


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            [
                "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5",
                "#       size         count",
            ],
            "nccl-tests",
        ),
        (
            [
                "-----  ------",
                "   Name    Self CPU %      Self CPU   CPU total %     CPU total",
                "aten::mm  9.1%  3.2ms",
            ],
            "key_averages",
        ),
        (["node0:1:2 [0] NCCL INFO Bootstrap : Using eth0", *nccl_init(range(8), 8, "COMPLETE")], "NCCL"),
        (["step 1 loss 2.0", *traceback("ValueError: no rank is told")], "no time-out and no end"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_with_the_way_out(lines: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says) as refused:
        judged(lines, tmp_path)
    assert refused.value.hint


def test_each_rank_has_a_log_of_its_own(tmp_path: Path) -> None:
    for rank in range(4):
        lines = traceback("ValueError: bad batch") if rank == 2 else timed_out(rank, 17)
        folder = tmp_path / "job" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("\n".join(["world_size=4", *lines]) + "\n")
    result = run(open_trace(tmp_path / "job", cache=tmp_path / "cache", workers=1))
    assert accused(result) == [2] and "bad batch" in in_words(result)


def ras_answer(moment: str, counts: Sequence[int], dead: Sequence[int] = ()) -> str:
    """What `ncclras -f json` prints, as NCCL 2.28.9 writes it: without a comma in its list of missing ranks."""
    ranks = ",\n".join(
        f'{{"rank": {rank}, "host": "10.0.0.1", "pid": {100 + rank}, "cuda_dev": {rank}, "nvml_dev": {rank}, '
        f'"status": {{"init_state": 0}}, "collective_counts": {{"AllReduce": {count}}}}}'
        for rank, count in enumerate(counts)
        if rank not in dead
    )
    missing = ",\n".join(
        f'{{"rank": {rank}, "host": "10.0.0.1", "pid": {100 + rank}, "cuda_dev": {rank}, "nvml_dev": {rank}\n'
        '"status": {"unresponsive": true, "considered_dead": false}}'
        for rank in dead
    )
    return (
        f'{{"nccl_version": "2.28.9", "timestamp": "{moment}", "communicators_count": 1, "communicators": [{{"hash": '
        f'"0xae", "size": {len(counts)}, "ranks": [\n{ranks}\n], "missing_ranks_count": {len(dead)}, "missing_ranks": '
        f"[\n{missing}\n]}}]}}"
    )


RAS_TEXT = Path(__file__).parents[1] / "cases" / "hangs" / "ras" / "one_rank_behind" / "job" / "ras.txt"


def hang_detector(folder: Path, answers: Mapping[str, str]) -> tuple[TriageResult, str]:
    """Judge what Ray Train's hang detector leaves in the storage of a run."""
    files = {f"nccl_ras/{name}": text for name, text in answers.items()} | {
        "nccl_ras/ncclras_report.txt": RAS_TEXT.read_text(),
        "stack_traces/rank_0.log": "Process 100: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 1\n",
        "nvidia_smi/node_10.0.0.1.log": "no `nvidia-smi` snapshot: timed out\n",
    }
    for name, text in files.items():
        path = folder / "hang_detector" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    trace = open_trace(folder / "hang_detector", cache=folder / "cache", workers=1)
    result = run(trace)
    return result, " ".join(one.code for one in trace.job.warnings)


def test_of_rays_answers_of_ras_the_newest_counts_and_earlier_ones_show_that_it_stands(tmp_path: Path) -> None:
    stands = {
        f"ncclras_2026-08-21T10-00-{at:02}.json": ras_answer(f"2026-08-21T10:00:{at:02}", [9, 9, 8, 9])
        for at in (5, 15)
    }
    moves = {
        f"ncclras_2026-08-21T09-00-{at:02}.json": ras_answer(f"2026-08-21T09:00:{at:02}", [at, 7, 7, 7])
        for at in (6, 7)
    }
    result, codes = hang_detector(tmp_path, {**stands, **moves})
    assert accused(result) == [2] and "one_query" not in codes
    result, codes = hang_detector(
        tmp_path / "moves", {**moves, "n.json": ras_answer("2026-08-21T11:00:00", [9, 9, 9, 8])}
    )
    assert accused(result) == [3] and "one_query" in codes


def test_an_answer_of_ras_that_lost_a_comma_or_is_logged_by_ray_is_read(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(ras_answer("2026-08-21T10:00:00", [9, 9, 9, 9], dead=[1]))
    assert accused(run(open_trace(tmp_path / "ras.json", cache=tmp_path / "cache"))) == [1]
    logged = [f"(TrainController pid=77) {line}" for line in RAS_TEXT.read_text().splitlines()]
    for lines in (logged, ["step 1 loss 2.0"] * 9000 + logged):
        result, text = judged(lines, tmp_path)
        assert accused(result) == [7], text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.pt", b"PK\x03\x04" + b"\0" * 26 + b"model/data.pkl" + b"\x80\x02}q\0.", "a checkpoint"),
        ("old.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "a checkpoint"),
        (
            "m.safetensors",
            b"\x40\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            "a checkpoint",
        ),
        ("run-ab.wandb", b":W&B\xe1\xbe\0" + b"\0" * 100, "Weights & Biases"),
        ("files/wandb-summary.json", b'{"loss": 1.0}', "Weights & Biases"),
        ("events.out.tfevents.1700000.node0", b"\x18\0\0\0\0\0\0\0abcd", "TensorBoard"),
    ],
)
def test_a_file_that_is_no_recording_is_known(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "job" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (path.parent / "notes.txt").write_text("lr 3e-4\n")
    for source in (path, tmp_path / "job"):
        with pytest.raises(InputError, match=says) as refused:
            open_trace(source, cache=tmp_path / "cache", workers=1)
        assert "torch.profiler" in str(refused.value.hint)


def test_what_a_log_leaves_open_of_a_hang_comes_before_its_steps(tmp_path: Path) -> None:
    steps = [
        f" iteration {step:8d}/  500 | elapsed time per iteration (ms): {1400 + step % 7:.1f} | learning rate: 1e-4 |"
        for step in range(1, 100)
    ]
    path = tmp_path / "driver.log"
    path.write_text("\n".join([*steps, *NOBODY["folded lines"][0]]) + "\n")
    said = kair("triage", str(path))
    assert said.status == 0 and "RAY_DEDUP_LOGS=0" in said.out.splitlines()[0] and "99 steps" in said.out
