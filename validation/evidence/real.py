"""Does evidence beside the steps name the part that made a rank slow? Drawn takes of real jobs, with real faults.

    python validation/evidence/real.py --takes 60 [--fault-s 45] [--healthy 20] [--healthy-s 120] [--keep DIR]
    python validation/evidence/real.py --again DIR

Real jobs of three or four ranks (gloo) run under `kair capture run` with a coordinator and the agent's telemetry; to
start a job takes longer than a take, so each job goes through several of them: healthy seconds, then seconds with a
fault that the kernel, another process or the script itself makes. What each left is put into a store of its own, on
which `kair triage` is run. Of the takes in which it accuses exactly the slow rank it is told how often the part is
named, and in all takes how often one is said to explain that does not. Every take counts. `--again` asks kept stores.

It needs root, two cores, control groups of the first version, /dev/fuse, and a kernel that swaps to files. A network
that delays (netem) and a clock that is set (cpufreq) are used by none of the kinds: most virtual machines have neither.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "real")]

from captured_takes import kept_takes, options, recorded, run, split, told, wait_for  # noqa: E402  (of the folder above)
from cpu_groups import CpuGroup  # noqa: E402  (of a folder beside this one)
from real_job import FILE_BYTES, FROM_OUTSIDE, KINDS, READ_BYTES, TABLE_BYTES, Take  # noqa: E402
from slow_sources import unmount  # noqa: E402

from kair_capture.coordinator.step_log import read_all  # noqa: E402
from kair_capture.places import JobPlaces  # noqa: E402
from kair_engine.recording.evidence_files import stored_evidence  # noqa: E402
from kair_engine.trace.evidence_table import (  # noqa: E402
    SCHEMA,
    EvidenceFile,
    described,
    together,
    write_evidence,
)

ACCEPTED = {
    "quota": ("cpu_quota",),
    "cores": ("fewer_cores",),
    "priority": ("low_priority", "other_process_on_cores"),
    "neighbour": ("other_process_on_cores",),
    "memory": ("memory_pressure",),
    "storage": ("slow_storage",),
    "disk": ("slow_storage",),
    "service": ("slow_service",),
    "sleep": ("sleeps",),
    "gc": ("garbage_collection",),
    "leak": ("memory_leak",),
}
UNSPECIFIC = dict.fromkeys(("quota", "cores", "priority", "neighbour"), ("no_core",))
"""True of these kinds, and says less than it should: counted as neither named nor wrong."""
BEFORE_S, REST_S = 15.0, 8.0
AROUND_NS = 5 * 10**9
"""Of evidence, before and after the steps of a take."""
SWAP_BYTES = 1 << 30
GROUPS = Path("/sys/fs/cgroup")
JOB = "real"


def drawn(seed: int, kind: str, ranks: int, fault_s: float, healthy_s: float) -> Take:
    """The take of a seed: a step of about 15 to 35 ms, and a fault of a third of that or more."""
    chosen = random.Random(f"{seed} {kind}")
    device_ms = chosen.uniform(8, 20)
    fault_ms = max(chosen.uniform(0.35, 0.8) * (device_ms + 5), 5.0)
    own_ms, level = 1.0, 0
    if kind in ("neighbour", "cores"):
        # Who is to lack its core has to want it, before the fault as well; `cores` has a helper thread for the other.
        own_ms, level = fault_ms, 1
    elif kind == "priority":
        # At nice n it gets 1.25^-n of what the other process gets (the kernel's weights).
        level = chosen.randint(4, 10)
        own_ms = max(fault_ms * 1.25**-level, 1.0)
    usual_s = (device_ms + own_ms + 5) / 1e3
    victim = chosen.randrange(ranks)
    if kind == "healthy":
        steps = math.ceil(healthy_s / usual_s)
        onset = steps
    else:
        onset = math.ceil(BEFORE_S / usual_s)
        steps = onset + math.ceil(fault_s / (usual_s + fault_ms / 1e3))
    rest = math.ceil(REST_S / usual_s)
    return Take(
        seed, kind, ranks, victim, round(device_ms, 1), round(fault_ms, 1), steps, onset, round(own_ms, 2), level, rest
    )


def record(takes: list[Take], places: JobPlaces, folder: Path, into: Path) -> Iterator[tuple[Take, Path]]:
    """Trains the takes of a job, and keeps them."""
    with ExitStack() as stack:
        sources({take.kind for take in takes}, folder, stack)
        groups = {take.name: group_before(take, folder, stack) for take in takes if take.kind in _GROUPED}
        fault = partial(fault_from_outside, groups)
        run(takes, places, folder, HERE / "real_job.py", from_outside=FROM_OUTSIDE, fault=fault)
    yield from with_evidence(takes, places, into)


_GROUPED = {"memory": "memory", "disk": "blkio"}
"""Kinds whose victims are in a control group of that controller."""


def sources(kinds: set[str], folder: Path, stack: ExitStack) -> None:
    """What loaders read from in these kinds, and a place to swap to."""
    if kinds & {"storage", "disk"}:
        (folder / "files").mkdir()
        (folder / "files" / "shard.bin").write_bytes(os.urandom(FILE_BYTES))
        os.sync()
    if "storage" in kinds:
        at = folder / "mount"
        at.mkdir()
        (folder / "delay-storage").write_text("0", encoding="ascii")
        server = serving(["files", str(folder / "files"), str(at), str(folder / "delay-storage")], stack)
        stack.callback(unmount, at)
        while not (at / "shard.bin").exists() and server.poll() is None:
            time.sleep(0.05)
    if "service" in kinds:
        (folder / "delay-service").write_text("", encoding="ascii")
        server = serving(["service", str(folder / "port"), str(folder / "delay-service")], stack)
        wait_for(folder / "port", server)
    if "memory" in kinds:
        swap = folder / "swap"
        with swap.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, SWAP_BYTES)
        swap.chmod(0o600)
        for command in ("mkswap", "swapon"):
            subprocess.run([command, str(swap)], check=True, capture_output=True)
        stack.callback(subprocess.run, ["swapoff", str(swap)], check=False)


def serving(words: list[str], stack: ExitStack) -> subprocess.Popen[bytes]:
    """One of slow_sources.py, ended with the job."""
    server = subprocess.Popen([sys.executable, str(HERE / "slow_sources.py"), *words])
    stack.callback(server.wait)
    stack.callback(server.kill)
    return server


@dataclass(frozen=True)
class Group:
    """A control group of the first version."""

    folder: Path
    parent: Path

    def write(self, name: str, text: str) -> None:
        """One of its files."""
        (self.folder / name).write_text(text, encoding="ascii")

    def remove(self) -> None:
        """Once nobody is in it any more."""
        if not self.folder.exists():
            return
        for pid in (self.folder / "cgroup.procs").read_text(encoding="ascii").split():
            with suppress(OSError):
                (self.parent / "cgroup.procs").write_text(pid, encoding="ascii")
        with suppress(OSError):
            self.folder.rmdir()


def group_before(take: Take, folder: Path, stack: ExitStack) -> Group:
    """The victim's, where it has to be in one before the fault."""
    controller = _GROUPED[take.kind]
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    own = next((line.split(":")[2] for line in lines if line.split(":")[1] == controller), None)
    if own is None:
        raise SystemExit(f"there are no control groups of {controller} of the first version here")
    parent = GROUPS / controller / own.strip("/")
    group = Group(parent / f"kair-real-{os.getpid()}-{take.name}", parent)
    group.folder.mkdir()
    stack.callback(group.remove)
    (folder / f"group-{take.name}").write_text(str(group.folder), encoding="utf-8")
    return group


@contextmanager
def fault_from_outside(
    groups: dict[str, Group], take: Take, folder: Path, job: subprocess.Popen[bytes]
) -> Iterator[None]:
    """Begins the fault once the victim waits at the onset, and ends it."""
    at, group = folder / f"pid-{take.name}", groups.get(take.name)
    wait_for(at, job)
    if not at.exists():
        yield
        return
    words = at.read_text(encoding="ascii").split()
    pid, step_s, computed_s = int(words[0]), float(words[1]), float(words[2])
    with ExitStack() as stack:
        slow_s = take.fault_ms / 1e3
        if group is not None:
            stack.callback(group.remove)
        if take.kind == "quota":
            cpu = CpuGroup.make(f"kair-real-{os.getpid()}", stack)
            cpu.limit(max(round(100_000 * computed_s / (step_s + slow_s)), 2000), 100_000)
            cpu.add(pid)
        elif take.kind == "neighbour":
            spin(take.level, stack)
        elif take.kind == "priority":
            # In one group, as in one container: between groups of their own niceness means nothing.
            cpu = CpuGroup.make(f"kair-real-{os.getpid()}", stack)
            cpu.add(pid)
            for one in spin(1, stack):
                cpu.add(one.pid)
            usual = os.getpriority(os.PRIO_PROCESS, pid)
            os.setpriority(os.PRIO_PROCESS, pid, min(usual + take.level, 19))
            stack.callback(os.setpriority, os.PRIO_PROCESS, pid, usual)
        elif take.kind == "cores":
            bind(pid, "1")
            stack.callback(bind, pid, f"0-{(os.cpu_count() or 1) - 1}")
        elif take.kind == "storage":
            delay(folder / "delay-storage", f"{slow_s}", "0", stack)
        elif take.kind == "service":
            delay(folder / "delay-service", f"{take.victim} {slow_s}", "", stack)
        elif group is not None and take.kind == "disk":
            device = folder.stat().st_dev
            rate = round(READ_BYTES / (step_s + slow_s))
            group.write("blkio.throttle.read_bps_device", f"{os.major(device)}:{os.minor(device)} {rate}")
            group.write("cgroup.procs", str(pid))
        elif group is not None:
            used = int((group.folder / "memory.usage_in_bytes").read_text(encoding="ascii"))
            group.write("memory.limit_in_bytes", str(used - TABLE_BYTES // 2))
            stack.callback(group.write, "memory.limit_in_bytes", "-1")
        at.unlink()
        yield


def spin(number: int, stack: ExitStack) -> list[subprocess.Popen[bytes]]:
    """Processes that compute on core 1, each of a session of its own, as what others start is."""
    command = ["taskset", "-c", "1", sys.executable, "-c", "while True: pass"]
    begun = []
    for _ in range(number):
        one = subprocess.Popen(command, start_new_session=True)
        stack.callback(one.wait)
        stack.callback(one.kill)
        begun.append(one)
    return begun


def bind(pid: int, cores: str) -> None:
    """All threads of a process to these cores."""
    subprocess.run(["taskset", "-a", "-p", "-c", cores, str(pid)], check=False, capture_output=True)


def delay(file: Path, slow: str, usual: str, stack: ExitStack) -> None:
    """Tells a slow source so, and at the end that it is over."""

    def tell(text: str) -> None:
        unfinished = file.with_suffix(".new")
        unfinished.write_text(text, encoding="ascii")
        unfinished.rename(file)

    tell(slow)
    stack.callback(tell, usual)


def with_evidence(takes: list[Take], places: JobPlaces, into: Path) -> Iterator[tuple[Take, Path]]:
    """A folder for each take, in whose store is the evidence of its time as well."""
    evidence, _ = stored_evidence(places.evidence.parent)
    for take, kept in split(takes, places, into):
        own = JobPlaces(kept / "store", JOB)
        of, rows = own.evidence, read_all(own.steps)
        for path in sorted(places.evidence.glob("**/identity*.json")):
            copy = of / path.relative_to(places.evidence)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        if len(rows):
            begin, end = int(rows["begin_us"].min()), int((rows["begin_us"] + rows["step_us"]).max())
            of.mkdir(exist_ok=True)
            write_evidence(of / "samples.parquet", cut_out(evidence, begin * 1000 - AROUND_NS, end * 1000 + AROUND_NS))
        yield take, kept


def cut_out(evidence: EvidenceFile, begin_ns: int, end_ns: int) -> EvidenceFile:
    """What was read between two times; of what is told when it changes, also what held at the first of them."""
    frame = pl.from_arrow(evidence.table)
    assert isinstance(frame, pl.DataFrame)
    counted = pl.when(is_counter()).then(pl.col("text").cast(pl.String)).alias("of_text")
    texts = [pl.col(name).cast(pl.String) for name in ("host", "entity", "name")]
    of_series = ["host", "entity", "name", "rank", "source_kind", "of_text"]
    kind = {at: one.name for at, one in enumerate(evidence.sources)}
    held = {at: (one.holds_s or 0.0) * 1e9 for at, one in enumerate(evidence.sources)}
    # A sampler that writes several files is one source in each of them.
    frame = frame.with_columns(
        *texts, counted, pl.col("source").replace_strict(kind, return_dtype=pl.String).alias("source_kind")
    )
    inside = frame.filter(pl.col("time_ns").is_between(begin_ns, end_ns))
    before = (
        frame.filter(pl.col("time_ns") < begin_ns)
        .filter(begin_ns - pl.col("time_ns") <= pl.col("source").replace_strict(held, return_dtype=pl.Float64))
        .sort("time_ns")
        .group_by(of_series, maintain_order=True)
        .last()
        .with_columns(time_ns=pl.lit(begin_ns, pl.Int64))
        .select(frame.columns)
    )
    chosen = pl.concat([before, inside]).sort("time_ns")
    parts = []
    names = sorted({one.name for one in evidence.sources})
    for name in names:
        rows = chosen.filter(pl.col("source_kind") == name)
        if not len(rows):
            continue
        of = evidence.sources[int(rows["source"][-1])]
        table = rows.with_columns(source=pl.lit(0, pl.Int32)).select(SCHEMA.names).to_arrow()
        parts.append(described(plain(table), replace(of, gaps=0, longest_gap_s=0.0)))
    return together(parts)


def is_counter() -> pl.Expr:
    """Whether a row's measure is a counter: these are counted by their texts."""
    from kair_engine.trace.measures import MEASURES

    return pl.col("name").cast(pl.String).is_in([name for name, one in MEASURES.items() if one.kind == "counter"])


def plain(table: pa.Table) -> pa.Table:
    """With the types of SCHEMA."""
    columns = []
    for field in SCHEMA:
        column = table[field.name].combine_chunks()
        if pa.types.is_dictionary(field.type):
            column = pc.dictionary_encode(column.cast(pa.string()))
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class Judged:
    """One take."""

    accused: str
    """`rightly`, `missed`, `false` or `error`; of a healthy take `quiet` or `false`."""
    part: str | None
    """What is said first of the rank that is rightly accused: the first that explains, else that is consistent."""
    outcome: str
    """`named`, `unspecific`, `wrong`, `other` (consistent, and not the part) or `nothing`."""
    wrong: tuple[str, ...]
    """Parts that are said to explain any of the findings, and do not."""
    claims: tuple[str, ...]
    """Whatever is said to explain or to be consistent."""


def judged(take: Take, data: dict[str, Any]) -> Judged:
    """The verdict and what explains it, held against what was done."""
    findings = [one for one in data["findings"] if one["ranks"]]
    rightly = [one for one in findings if one["ranks"] == [take.victim]] if not take.is_healthy else []
    others = [one for one in findings if take.is_healthy or take.victim not in one["ranks"]]
    accepted, unspecific = ACCEPTED.get(take.kind, ()), UNSPECIFIC.get(take.kind, ())
    claims = [(word, one["part"]) for word in ("explains", "consistent") for of in findings for one in _of(of, word)]
    wrong = {one["part"] for of in findings for one in _of(of, "explains") if one["part"] not in accepted + unspecific}
    wrong |= {one["part"] for of in others for one in _of(of, "explains")}
    accused = "false" if others else "rightly" if rightly else "quiet" if take.is_healthy else "missed"
    if data["verdict"] == "error":
        accused = "error"
    first = next((one["part"] for word in ("explains", "consistent") for of in rightly for one in _of(of, word)), None)
    outcome = "nothing"
    if first is not None:
        outcome = "named" if first in accepted else "unspecific" if first in unspecific else "other"
    if wrong:
        outcome = "wrong" if outcome != "named" else "named and wrong"
    return Judged(accused, first, outcome, tuple(sorted(wrong)), tuple(f"{part} {word}" for word, part in claims))


def _of(finding: dict[str, Any], word: str) -> list[dict[str, Any]]:
    return [one for one in finding["explanations"] if one["word"] == word]


def report(take: Take, store: Path, into: list[tuple[Take, Judged]]) -> None:
    """A line for it."""
    data = told(store, JOB)
    found = judged(take, data)
    into.append((take, found))
    looked = {
        one["part"]: [one["word"], one["measured_us"], one["predicted_us"], one["fired"], one["tried"]]
        for finding in data["findings"]
        for one in finding["explanations"]
        if one["part"] in ACCEPTED.get(take.kind, ()) or one["word"] in ("explains", "consistent")
    }
    causes = [(one["ranks"], one["cause"], one["pattern"], one["since"]) for one in data["findings"]]
    line = {**asdict(take), **asdict(found), "findings": causes, "looked": looked, "summary": data["summary"]}
    print(json.dumps(line), flush=True)


def table(all_of: list[tuple[Take, Judged]]) -> str:
    """By kind."""
    head = ("kind", "takes", "accused rightly", "part named", "unspecific", "other", "nothing", "wrong part")
    lines: list[tuple[str, ...]] = [head]
    kinds = [kind for kind in KINDS if any(take.kind == kind for take, _ in all_of)]
    for kind in (*kinds, "all faults"):
        some = [one for take, one in all_of if take.kind == kind or (kind == "all faults" and take.kind != "healthy")]
        right = [one for one in some if one.accused == "rightly"]
        told = Counter(one.outcome.removesuffix(" and wrong") for one in right)
        counts = (told["named"], told["unspecific"], told["other"], told["nothing"])
        lines.append((kind, *map(str, (len(some), len(right), *counts, sum(bool(one.wrong) for one in some)))))
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    shown = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    if healthy := [one for take, one in all_of if take.kind == "healthy"]:
        found, claimed = sum(one.accused != "quiet" for one in healthy), sum(bool(one.claims) for one in healthy)
        shown.append(f"healthy: {len(healthy)} takes, {found} with a finding, {claimed} with a claim")
    return "\n".join(shown)


def main() -> int:
    """Runs them; 0."""
    parser = options(__doc__, len(KINDS), KINDS)
    parser.add_argument("--fault-s", type=float, default=45.0, help="of each take with a fault, about")
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--healthy-s", type=float, default=120.0, help="of each healthy take, about")
    given = parser.parse_args()
    # Ended from outside it undoes what it did to the machine as well: mounts, swap, control groups.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kinds, random_of = given.kinds.split(","), random.Random(given.seed)
    takes = [drawn(given.seed + at, "healthy", 3 + at % 2, 0.0, given.healthy_s) for at in range(given.healthy)]
    takes += [
        drawn(given.seed + at, kinds[at % len(kinds)], random_of.choice((3, 4)), given.fault_s, 0.0)
        for at in range(given.takes)
    ]
    found: list[tuple[Take, Judged]] = []
    of_a_job = attrgetter("ranks")
    some = kept_takes(given.again, Take) if given.again else recorded(takes, of_a_job, JOB, given.keep, record)
    for take, kept in some:
        report(take, kept / "store", found)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
