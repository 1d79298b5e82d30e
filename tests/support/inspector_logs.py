"""Makes logs of NCCL's Inspector as its `inspector_json.cc` writes them: of a simulated job, rank by rank.

Ranks compute layer by layer. A collective begins on each rank when it gets there, and ends for all once the last one is
there and the transfer is over. TP groups meet after every layer, DP groups reduce its gradients, and all ranks meet at
the end of a step.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BEGIN_US = 1_790_000_000_000_000


@dataclass
class Spoken:
    """One call of a collective on one rank."""

    communicator: str
    place: int
    size: int
    hosts: int
    name: str
    number: int
    message: int
    begin_us: float
    end_us: float


@dataclass
class MadeJob:
    """A job of dp × tp ranks, those of a TP group next to one another, and what is wrong with it."""

    dp: int = 8
    tp: int = 1
    steps: int = 120
    layers: int = 4
    layer_us: float = 5_000.0
    transfer_us: float = 2_000.0
    noise: float = 0.01
    """Of each layer's time."""
    uneven: float = 0.002
    """Ranks differ by so much for good, as a share."""
    stalls: float = 0.0
    """In so many layers a rank stalls for as long as a layer."""
    seed: int = 0
    late: dict[int, float] = field(default_factory=dict)
    """rank → times its computing takes."""
    since: int = 0
    """The step from which on ranks are late."""
    slow_group: int | None = None
    """The TP group, by its number, whose transfers take `slower` times as long."""
    slower: float = 1.0
    per_host: int = 8
    overlaps: bool = False
    """Whether gradients are reduced while the next layer computes."""
    world: bool = True
    """Whether a communicator has all ranks."""
    dump_us: int | None = 100_000
    """Between dumps, 0 for one at the end; None: verbose lines, with times of the kernels."""
    clock_us: float = 0.0
    """Hosts' clocks are apart by so much."""
    spoken: list[list[Spoken]] = field(default_factory=list)
    """Per rank."""
    step_us: float = 0.0
    """What a step took, in the mean."""
    _numbers: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Simulates the job."""
        self._chance = np.random.default_rng(self.seed)
        count = self.dp * self.tp
        self.spoken = [[] for _ in range(count)]
        own = 1 + self.uneven * self._chance.standard_normal(count)
        tp_groups = [list(range(at, at + self.tp)) for at in range(0, count, self.tp)]
        dp_groups = [list(range(at, count, self.tp)) for at in range(self.tp)]
        now, is_free, begins = np.zeros(count), np.zeros(count), []
        for step in range(self.steps):
            begins.append(float(now.max()))
            for layer in range(self.layers):
                now = now + self._layer(own, step)
                if self.tp > 1:
                    now = self._meet("7a", tp_groups, "AllReduce", 16_000_000, now, self.slow_group)
                reduced = self._meet("d0", dp_groups, "ReduceScatter", 64_000_000 + 4 * layer, np.maximum(now, is_free))
                is_free, now = reduced, now if self.overlaps else reduced
            now = np.maximum(now, is_free)
            if self.world:
                now = self._meet("ff", [list(range(count))], "AllReduce", 1_000_000, now)
        self.step_us = float(np.diff(begins).mean())

    def _layer(self, own: Floats, step: int) -> Floats:
        count = len(own)
        times = own * (1 + self.noise * np.abs(self._chance.standard_normal(count)))
        for rank, factor in self.late.items():
            times[rank] *= factor if step >= self.since else 1.0
        return np.asarray(self.layer_us * (times + (self._chance.random(count) < self.stalls)))

    def _meet(
        self, prefix: str, groups: list[list[int]], name: str, message: int, at: Floats, slow: int | None = None
    ) -> Floats:
        left = at.copy()
        for index, group in enumerate(groups):
            usual = self.transfer_us * message / 64e6 * (1 + 0.02 * abs(self._chance.standard_normal()))
            end = float(at[group].max()) + usual * (self.slower if index == slow else 1.0)
            communicator = f"0x{prefix}{index:04x}"
            number = self._numbers[communicator, name]
            self._numbers[communicator, name] += 1
            hosts = len({rank // self.per_host for rank in group})
            for place, rank in enumerate(group):
                begin = float(at[rank])
                self.spoken[rank].append(
                    Spoken(communicator, place, len(group), hosts, name, number, message, begin, end)
                )
            left[group] = end
        return left

    def lines(self, rank: int) -> list[str]:
        """Return the lines of a rank's log."""
        clock = BEGIN_US + self.clock_us * ((rank // self.per_host) % 5)
        return [self._line(rank, clock, at, one) for at, one in enumerate(self.spoken[rank])]

    def _line(self, rank: int, clock: float, at: int, one: Spoken) -> str:
        took = int(one.end_us - one.begin_us)
        perf: dict[str, object] = {
            "coll": one.name,
            "coll_sn": one.number,
            "coll_msg_size_bytes": one.message,
            "coll_exec_time_us": took,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": round(one.message / max(took, 1) / 1e3, 6),
            "coll_busbw_gbs": round(one.message / max(took, 1) / 1e3, 6),
        }
        written = one.end_us
        if self.dump_us is None:
            began, ended = int(clock + one.begin_us), int(clock + one.end_us)
            kernel = {"channel_id": 0, "kernel_start_ts": began, "kernel_stop_ts": ended, "kernel_record_ts": ended}
            perf["event_trace_ts"] = {
                "coll_start_ts": began - 40,
                "coll_stop_ts": began - 30,
                "kernel_events": [kernel],
            }
        else:
            written = -(-one.end_us // self.dump_us) * self.dump_us if self.dump_us else 0.0
        place = {"rank": one.place, "n_ranks": one.size, "nnodes": one.hosts}
        host, pid = self.process(rank)
        metadata = {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": int(clock + written + at % 50),
            "hostname": host,
            "pid": pid,
        }
        header = {"id": one.communicator, "comm_name": "unknown", **place}
        return json.dumps({"header": header, "metadata": metadata, "coll_perf": perf})

    def process(self, rank: int) -> tuple[str, int]:
        """Return the host and the process id of a rank."""
        return f"node-{rank // self.per_host}", 4_000 + 7 * rank

    def write(self, folder: Path, without: tuple[int, ...] = ()) -> Path:
        """Write the logs of all ranks but some into a folder, which is returned."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(len(self.spoken)):
            if rank not in without:
                host, pid = self.process(rank)
                (folder / f"{host}-pid{pid}.log").write_text("\n".join(self.lines(rank)) + "\n")
        return folder

    def write_plugin_traces(self, folder: Path) -> Path:
        """Write what the example profiler plug-in would have written of each communicator and rank."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank, calls in enumerate(self.spoken):
            of: dict[str, list[str]] = {}
            for at, one in enumerate(calls):
                common = f'"id": {at}, "pid": {4_000 + 7 * rank}, "tid": 1, "ts": {one.begin_us:f}'
                begin, end = (BEGIN_US * 1000 + int(us * 1000) for us in (one.begin_us, one.end_us))
                head = f'{{"name": "{one.name}", "cat": "COLL", "ph": "b", {common}, "args": {{"SeqNum": {one.number}, '
                head += f'"CommHash": {int(one.communicator, 16)}, "Rank": {one.place}, "Count": {one.message // 4}, '
                lines = of.setdefault(one.communicator, [])
                lines.append(head + '"Datatype": "ncclFloat32", "Algorithm": "RING", "nChannels": 1}},')
                kernel = f'"args": {{"Channel": 0, "StartGpuClk": {begin}, "StopGpuClk": {end}}}'
                lines.append(f'{{"name": "KernelCh", "cat": "GPU", "ph": "b", {common}, {kernel}}},')
                lines.append(f'{{"name": "KernelCh", "cat": "GPU", "ph": "e", {common}}},')
                lines.append(f'{{"name": "{one.name}", "cat": "COLL", "ph": "e", {common}}},')
            for communicator, lines in of.items():
                place = next(one.place for one in calls if one.communicator == communicator)
                name = f"trace_{int(communicator, 16)}_{place}.json"
                (folder / name).write_text("\n".join(["[", *lines, "{}]", ""]))
        return folder
