"""Kinds of hangs and deaths in logs: whom each accuses, and what it quotes; no case may need a rule of its own."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from kinds import in_words
from kinds import triage as run
from support.job_logs import all_timed_out, nccl_init, timed_out, torchrun, traceback

from kair_engine.errors import InputError
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult

WORLD = ["world_size=8"]
SEVEN = [rank for rank in range(8) if rank != 5]
JAX = "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. "
STUCK = (
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
)
RAY = "(WorkerDict pid={}, ip=10.0.0.{}) "
NOTIFY = (
    "EI0002: [PID: {pid}] 2025-11-17-15:09:34.713.335 The wait execution of the Notify register times out. Reason: The "
    "Notify register has not received the Notify record from remote rank: [{peer}]. base information: [streamID:[9], "
    "tag[AllGather_group_name_0_device].]. group information: [group:[group_name_0], rankSize[{size}], rankId[{rank}]]"
)


def notify(rank: int, peer: object, size: int = 8) -> str:
    return NOTIFY.format(pid=2900 + rank, rank=rank, peer=peer, size=size)


def judged(lines: Sequence[str], folder: Path, name: str = "job.log") -> tuple[TriageResult, str]:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    trace = open_trace(path, cache=folder / "cache", workers=1)
    result = run(trace)
    warned = [one.message for one in (*trace.job.warnings, *result.warnings)]
    return result, "\n".join((in_words(result), *warned))


def accused(result: TriageResult) -> list[int]:
    return sorted({int(rank) for finding in result.findings for rank in finding.ranks})


KINDS: dict[str, tuple[list[str], list[int], tuple[str, ...]]] = {
    "killed before others time out": (
        [*WORLD, *all_timed_out(SEVEN, 220), *torchrun(5, -9)],
        [5],
        ("SIGKILL", "OOM killer", "reported no time-out"),
    ),
    "aborted by its own watchdog": ([*WORLD, *all_timed_out(SEVEN, 220), *torchrun(0, -6, at="08:00:02")], [5], ()),
    "exit status of one that timed out": (
        [*WORLD, *all_timed_out(SEVEN, 220), *torchrun(0, 1, at="08:00:02")],
        [5],
        (),
    ),
    "segmentation fault": ([*WORLD, *torchrun(2, -11)], [2], ("SIGSEGV",)),
    "an error of its own, kept by torchrun": (
        [
            *WORLD,
            *torchrun(2, 1, error="Traceback (most recent call last):")[:-1],
            "    raise x",
            "  ValueError: bad batch",
            "====",
        ],
        [2],
        ("ValueError: bad batch",),
    ),
    "an error of its own, among time-outs": (
        [*WORLD, *traceback("ValueError: bad batch", "[rank5]: "), *all_timed_out(SEVEN, 220)],
        [5],
        ("ValueError: bad batch", "reported no time-out"),
    ),
    "the CUDA error of a watchdog": (
        [
            *WORLD,
            "[rank5]:[E1117 07:50:00.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group "
            "watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
            *all_timed_out(SEVEN, 220),
        ],
        [5],
        ("illegal memory access", "CUDA_LAUNCH_BLOCKING"),
    ),
    "errors of lost peers are no reason": (
        [
            *WORLD,
            *(
                line
                for rank in SEVEN
                for line in traceback(f"RuntimeError: Connection closed by peer [10.0.0.{rank}]:90", f"[rank{rank}]: ")
            ),
            *traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "[rank5]: "),
        ],
        [5],
        ("out of memory", "memory of rank 5"),
    ),
    "srun tells of a task": (
        ["0: world_size=4", "srun: error: node2: task 2: Killed", "srun: error: node1: tasks 0-1,3: Terminated"],
        [2],
        ("SIGKILL", "node2|OOM"),
    ),
    "srun: out of memory": (
        [
            "0: world_size=4",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=9.0. Some of the step tasks have been OOM Killed.",
            "srun: error: node2: task 2: Out Of Memory",
        ],
        [2],
        ("SIGKILL", "memory"),
    ),
    "mpirun": (
        ["mpirun noticed that process rank 3 with PID 2303 on node node7 exited on signal 9 (Killed)."],
        [3],
        ("SIGKILL",),
    ),
    "MPICH": (
        [
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
            "=   RANK 3 PID 2303 RUNNING AT node7",
            "=   KILLED BY SIGNAL: 11 (Segmentation fault)",
        ],
        [3],
        ("SIGSEGV",),
    ),
    "DeepSpeed's launcher": (
        [
            *WORLD,
            "[ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank=3', '--x'] exits with return code = -9",
        ],
        [3],
        ("SIGKILL",),
    ),
    "spawned processes": (
        [*traceback("torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL")],
        [3],
        ("SIGKILL",),
    ),
    "a worker of Ray": (
        [
            *(f"{RAY.format(5800 + rank, rank)}init rank={rank} world_size=4" for rank in range(4)),
            "(raylet, ip=10.0.0.3) A worker died or was killed while executing a task by an unexpected system error. "
            "Worker ID: f00 Node ID: abc Worker IP address: 10.0.0.3 Worker port: 10009 Worker PID: 5803 Worker exit "
            "type: SYSTEM_ERROR Worker exit detail: connection error code 2. End of file.",
        ],
        [3],
        ("SYSTEM_ERROR", "pid 5803"),
    ),
    "barrier, one by one": (
        [
            "[Rank 0]: Rank 6 failed to pass monitoredBarrier in 30000 ms",
            "[Rank 0]: Rank 7 failed to pass monitoredBarrier in 30000 ms",
            "[rank0]: RuntimeError: [Rank 0]: Ranks 6, 7 failed to pass monitoredBarrier in 30000 ms",
        ],
        [6, 7],
        ("failed to pass monitoredBarrier",),
    ),
    "barrier of old": (["RuntimeError: Rank 1 failed to pass monitoredBarrier in 2000 ms"], [1], ("monitoredBarrier",)),
    "HCCL, a chain": ([notify(0, 7), notify(7, 6), notify(6, 5)], [5], ("Notify record from remote rank",)),
    "HCCL without numbers of groups": (
        [f"[ERROR] (PID:{2900 + rank}, Device:{rank}, RankID:{rank}) ERR00100" for rank in range(8)]
        + [notify(rank, 5).partition(" base")[0] for rank in (4, 6)],
        [5],
        ("remote rank",),
    ),
    "JAX's barrier of old": (
        [
            f"{JAX}Barrier_id: sync0. Timed out task names:",
            "/job:jax_worker/replica:0/task:3",
            "/job:jax_worker/replica:0/task:0",
            "",
        ],
        [0, 3],
        ("Barrier timed out",),
    ),
    "JAX's barrier": (
        [
            f"{JAX}Id: 0_async_write_complete.0.1. This usually happens because a task was too early.",
            "# of tasks that reached the barrier: 7/8.",
            "The first task at the barrier: /job:jax_worker/replica:0/task:2. Some timed out task names:",
            "/job:jax_worker/replica:0/task:6",
            "",
        ],
        [6],
        ("7 of 8 tasks",),
    ),
    "JAX's heartbeats": (
        [
            " 0: absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
            " 0: /job:jax_worker/replica:0/task:3",
            " 0: The tasks have crashed.",
        ],
        [3],
        ("stopped sending heartbeats",),
    ),
    "a stuck watchdog": (
        [
            *WORLD,
            f"[rank3]:[E1117 08:00:00.1 ProcessGroupNCCL.cpp:1282] [PG ID 0 PG GUID 0(default_pg) Rank 3] {STUCK}",
        ],
        [3],
        ("got stuck for 480 seconds", "py-spy"),
    ),
    "stuck after its time-out": (
        [*WORLD, *all_timed_out(SEVEN, 220), *(f"[rank{rank}]:[E1117 08:10:00.1 P.cpp:1] {STUCK}" for rank in SEVEN)],
        [5],
        (),
    ),
    "the silent one is stuck": (
        [*WORLD, *all_timed_out(SEVEN, 220), f"[rank5]:[E1117 08:01:00.1 P.cpp:1] {STUCK}"],
        [5],
        ("got stuck",),
    ),
    "NCCL's initialisation": (
        [*nccl_init(SEVEN, 8, "START")],
        [5],
        ("initialisation",),
    ),
    "NCCL's initialisation, not ended by one": (
        [*nccl_init(range(8), 8, "START"), *nccl_init(SEVEN, 8, "COMPLETE")],
        [5],
        ("did not end",),
    ),
    "a port failed": (
        [
            *WORLD,
            *nccl_init(range(8), 8, "COMPLETE"),
            "node1:2306:2499 [2] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error",
            *all_timed_out(range(8), 220),
        ],
        [6],
        ("mlx5_2:1", "port error", "cable"),
    ),
    "an analysis of dumps": (
        [
            "Not all ranks joining collective 5 at entry 4",
            "group info: 0:default_pg",
            "collective: nccl:all_reduce",
            "missing ranks: {1}",
            "input sizes: [[3, 4]]",
            "expected ranks: 2",
        ],
        [1],
        ("Not all ranks joining collective 5",),
    ),
    "an analysis of dumps, of 2.7": (
        [
            "[rank0]: INFO: Not all ranks joining collective, sequence number: 4",
            "[rank0]: INFO: collective: nccl:all_gather",
            "[rank0]: INFO: missing ranks: {3, 4}",
        ],
        [3, 4],
        ("sequence number: 4",),
    ),
    "an analysis of dumps, a mismatch": (
        [
            "Collective sequence number: 7 has errors",
            "group info: 0:default_pg",
            "collective: nccl:broadcast",
            "error messages: Culprit rank 2; COLLECTIVE_TYPE_MISMATCH Expected type",
        ],
        [2],
        ("Culprit rank 2",),
    ),
    "a subgroup, and one that is silent": (
        [
            "world_size: 8",
            *timed_out(7, 3, "BROADCAST", group="20(mesh_tp)", in_group=1),
            *all_timed_out(range(6), 212),
        ],
        [6],
        (),
    ),
    "an attempt before, of lower numbers later": (
        [
            *WORLD,
            *all_timed_out([rank for rank in range(8) if rank != 2], 900),
            *all_timed_out(SEVEN, 300, at="1118 09:00:00"),
        ],
        [5],
        (),
    ),
    "an attempt before, requeued": (
        [
            *WORLD,
            *all_timed_out([rank for rank in range(8) if rank != 2], 100),
            "slurmstepd: error: *** JOB 88121 ON node1 CANCELLED AT 2025-11-17T08:01:00 DUE TO JOB REQUEUE ***",
            *WORLD,
            *all_timed_out(SEVEN, 300, at="1118 09:00:00"),
        ],
        [5],
        (),
    ),
    "an attempt that stopped at the same call": (
        [
            *WORLD,
            *all_timed_out([rank for rank in range(8) if rank != 2], 300),
            *all_timed_out(SEVEN, 300, at="1118 09:00:00"),
        ],
        [5],
        (),
    ),
    "two jobs of Ray, the later one is whole": (
        [
            *(f"(Ref pid={50 + rank}, ip=10.0.0.{rank}) rank={rank} world_size=8" for rank in range(8)),
            *(f"(Actor pid={90 + rank}, ip=10.0.0.{rank}) rank={rank} world_size=8" for rank in range(8)),
            *(
                line
                for rank in SEVEN
                for line in timed_out(rank, 17, before=f"(Ref pid={50 + rank}, ip=10.0.0.{rank}) ")
            ),
            *(
                line
                for rank in range(8)
                for line in timed_out(rank, 9, at="1117 08:00:40", before=f"(Actor pid={90 + rank}, ip=10.0.0.{rank}) ")
            ),
        ],
        [5],
        ("2 jobs", "Ref, pid 55"),
    ),
    "two jobs in pods of one name each": (
        [
            *(f"[pod/ref-worker-{rank}/pytorch] world_size=4" for rank in range(4)),
            *(line for rank in (0, 1, 3) for line in timed_out(rank, 17, before=f"[pod/ref-worker-{rank}/pytorch] ")),
            *(line for rank in range(4) for line in timed_out(rank, 9, before=f"[pod/actor-worker-{rank}/pytorch] ")),
        ],
        [2],
        ("2 jobs",),
    ),
    "one job in a pod of the master and others": (
        [
            "[pod/job-master-0/pytorch] world_size=4",
            *timed_out(0, 17, before="[pod/job-master-0/pytorch] "),
            *(line for rank in (1, 3) for line in timed_out(rank, 17, before=f"[pod/job-worker-{rank}/pytorch] ")),
        ],
        [2],
        (),
    ),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kind_names_whom_it_should(kind: str, tmp_path: Path) -> None:
    lines, ranks, says = KINDS[kind]
    result, text = judged(lines, tmp_path)
    assert accused(result) == ranks, text
    assert result.verdict == "straggler"
    for pattern in says:
        assert re.search(pattern, text), (pattern, text)


NOBODY: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "folded lines": (
        [
            *(f"{RAY.format(5800 + rank, rank)}rank={rank} world_size=8" for rank in range(8)),
            *timed_out(0, 17, before=RAY.format(5800, 0)),
            *timed_out(3, 17, before=RAY.format(5803, 3), after=" [repeated 3x across cluster]"),
        ],
        ("RAY_DEDUP_LOGS=0", "worker-"),
    ),
    "an error of all": (
        [
            *WORLD,
            *(line for rank in range(8) for line in traceback(f"FileNotFoundError: /data/{rank}", f"[rank{rank}]: ")),
        ],
        ("FileNotFoundError", "alike"),
    ),
    "ended from outside": (
        [
            *WORLD,
            "slurmstepd: error: *** STEP 8.0 ON node1 CANCELLED AT 2025-11-17T08:01:00 DUE TO TIME LIMIT ***",
            "srun: error: node1: tasks 0-7: Terminated",
            *torchrun(3, -15),
        ],
        ("TIME LIMIT",),
    ),
    "HCCL in a part of the job": (
        ["world_size=16", notify(0, 5), notify(4, 5)],
        ("remote rank",),
    ),
    "HCCL of an unknown rank": (
        [
            notify(0, "unknown"),
            "Cluster Exception Location[IP/ID]:[90.90.92.240/1], ExceptionType:[Heartbeat Lost Occurred]",
        ],
        ("Heartbeat Lost|unknown",),
    ),
    "a port of a host without ranks": (
        [
            "node48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
            "node51:73076:73185 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node48<37948> "
            "with error 12, opcode 2, len 1",
        ],
        ("node48", "port error"),
    ),
    "two jobs of one class at one time": (
        [
            *(line for rank in SEVEN for line in timed_out(rank, 17, before=f"(W pid={50 + rank}, ip=10.0.0.1) ")),
            *(
                line
                for rank in range(8)
                for line in timed_out(rank, 99, at="1117 08:00:40", before=f"(W pid={90 + rank}, ip=10.0.0.1) ")
            ),
        ],
        ("several jobs", "workers' own logs"),
    ),
}


@pytest.mark.parametrize("kind", list(NOBODY))
def test_a_kind_in_which_nobody_can_be_named(kind: str, tmp_path: Path) -> None:
    lines, says = NOBODY[kind]
    result, text = judged(lines, tmp_path)
    assert accused(result) == [] and result.verdict in ("inconclusive", "job_wide"), text
    for pattern in says:
        assert re.search(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    "record",
    [
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-11-17T08:00:00.1Z"}),
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr"}, separators=(",", ":")),
        lambda line: json.dumps({"time": "x", "level": "error", "message": line, "kubernetes": {"pod": "a"}}),
        lambda line: json.dumps({"PRIORITY": "3", "MESSAGE": line}),
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
        (["step 1 loss 2.0", *traceback("ValueError: no rank is told")], "no time-out or end"),
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
