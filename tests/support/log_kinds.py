"""Kinds of logs of jobs that hang or die: their lines, whom they accuse, and what the answer quotes of them."""

from support.job_logs import all_timed_out, nccl_init, timed_out, torchrun, traceback

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
    "an attempt before, of a larger world": (
        [
            "world_size=16",
            *all_timed_out(range(15), 100),
            "[x] will restart worker group",
            *WORLD,
            *all_timed_out(SEVEN, 9),
        ],
        [5],
        (),
    ),
    "an error that was caught": (
        [
            *WORLD,
            *traceback("urllib3.exceptions.ReadTimeoutError: read timed out", "[rank3]: "),
            *traceback("ValueError: a bad sample, skipped", "[rank2]: "),
            "[rank2]: step 300 loss 1.2",
            *all_timed_out([0, 1, 3, 4, 6, 7], 220),
            *traceback("ValueError: bad batch", "[rank5]: "),
            *timed_out(2, 220),
        ],
        [5],
        ("bad batch",),
    ),
    "lost connections alone": (
        [
            f"[rank{rank}]:[E1117 09:46:03.0 ProcessGroupNCCL.cpp:552] [Rank {rank}] Collective WorkNCCL(SeqNum=918, "
            "OpType=ALLREDUCE, NumelIn=25, NumelOut=25, Timeout(ms)=600000) raised the following async exception: NCCL "
            "error: remote process exited or there was a network error, NCCL version 2.21.5"
            for rank in SEVEN
        ],
        [5],
        (r"\b918\b",),
    ),
    "one task of several that fail": (
        [
            "0: world_size=4",
            "srun: error: node2: task 2: Exited with exit code 1",
            "srun: error: node1: tasks 0-1,3: Terminated",
        ],
        [2],
        ("exit status 1",),
    ),
    "JAX's heartbeat of old": (
        ["UNAVAILABLE: Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that it failed."],
        [3],
        ("heartbeat timeout",),
    ),
    "Horovod's stall": (
        ["W horovod/common/stall_inspector.cc: allreduce.grad_7 [missing ranks: 1, 3]"],
        [1, 3],
        ("missing ranks",),
    ),
    "NCCL finds a mismatch": (
        ["n0:2:4 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 3."],
        [3],
        ("Mismatched collective",),
    ),
    "two jobs of Compose": (
        [
            *(f"ref-{rank}  | world_size=4" for rank in range(4)),
            *(line for rank in (0, 1, 3) for line in timed_out(rank, 17, before=f"ref-{rank}  | ")),
            *(line for rank in range(4) for line in timed_out(rank, 9, before=f"actor-{rank}  | ")),
        ],
        [2],
        ("2 jobs",),
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
    "ended by a person": (
        ["torch.distributed.elastic.multiprocessing.api.SignalException: Process 22 got signal: 2"],
        ("got signal",),
    ),
    "the launcher was ended": (
        [*WORLD, "SignalException: Process 22 got signal: 15", *torchrun(3, -9), "srun: error: node1: task 0: Killed"],
        ("got signal: 15",),
    ),
    "all tasks fail at once": (
        ["0: world_size=8", "srun: error: node1: tasks 0-7: Exited with exit code 1"],
        ("tasks 0-7: Exited",),
    ),
    "a store that others did not come to": (
        [
            *traceback(
                "torch.distributed.DistStoreError: Timed out after 1801 s waiting for clients. 7/8 clients joined.",
                "[rank0]: ",
            )
        ],
        ("7/8 clients", "does not say whose"),
    ),
    "an analysis of dumps of which some are lost": (
        ["We cannot decide what's wrong with this collective entry because we missed FR dumps from ranks ({3}) so we"],
        ("missed FR dumps from ranks",),
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
