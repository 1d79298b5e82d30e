"""Who is named when a job stands still, a rank dies or somebody ends it? Fourteen situations of real jobs.

    python validation/hangs.py [--only forward segv] [--stalled-after 30] [--keep DIR] [--write]

Jobs of three ranks (gloo, DistributedDataParallel) run under `kair capture run` with a coordinator. In step 40
something happens to one rank. `kair watch` is asked until it names somebody, then `kair triage` is. Seconds are counted
from the detection: for a hang from when the job counts as one that stands still, for a death from when step 39 was seen
to be over. A rank that leaves out a collective is named only where it alone came farther. Two situations need root:
`oom` (a memory group) and `host` (a network namespace, whose link goes down before all in it is killed).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPORT = HERE / "reports" / "hangs.md"
KAIR = (sys.executable, "-m", "kair_tui")
RANKS, VICTIM, STEP = 3, 1, 40
SITUATIONS = {
    "before": "stands before forward",
    "forward": "stands in forward",
    "after": "stands after forward",
    "collective": "in a collective of another group",
    "mismatch": "calls another collective",
    "segv": "SIGSEGV",
    "kill": "SIGKILL",
    "oom": "out of memory",
    "exception": "exception in one rank",
    "host": "host is dead",
    "leave": "leaves with os._exit(0)",
    "skip": "leaves out a collective",
    "cancel": "slow; SIGTERM to the launcher",
    "interrupt": "slow; SIGINT to the launcher",
}
EXPECTED = {
    "before": "hangs_job.py:",
    "forward": "in forward",
    "after": "hangs_job.py:",
    "collective": "in collective",
    "mismatch": "in collective",
    "segv": "SIGSEGV",
    "kill": "SIGKILL",
    "oom": "SIGKILL, as memory ran out",
    "exception": "ValueError: the batch is empty",
    "host": "host that is not heard",
    "leave": "ended in order",
    "skip": "rank 0",
    "cancel": "the job was ended from outside (SIGTERM on all ranks)",
    "interrupt": "the job was ended from outside (SIGINT on all ranks)",
}
"""What the answer has to say of where, or how."""
DEATHS = ("segv", "kill", "oom", "exception", "leave", "skip")
ENDED = {"cancel": signal.SIGTERM, "interrupt": signal.SIGINT}
"""What the launcher is ended by, after enough steps to prove that the victim is slow: triage names it."""
SLOW_STEPS = 120
NAMESPACE, NEAR, FAR = "kair-hang", "10.213.7.1", "10.213.7.2"


@dataclass(frozen=True)
class Outcome:
    """What was told of one situation."""

    situation: str
    watch: tuple[int, ...]
    triage: tuple[int, ...]
    told: str
    summary: str
    seconds: float
    """From the detection to the answer in `kair watch`."""
    triage_s: float

    @property
    def is_right(self) -> bool:
        """The right rank, and where, in both."""
        named = (VICTIM,) if self.situation != "host" else (RANKS - 1,)
        if self.situation in ENDED:
            return (self.watch, self.triage) == ((), named) and EXPECTED[self.situation] in self.told
        right = (named, ()) if self.situation == "skip" else (named,)  # others may be a step farther with it
        return self.watch == self.triage in right and EXPECTED[self.situation] in self.told


def run(situation: str, folder: Path, stalled_after_s: float) -> Outcome:
    """Runs one job. Raises TimeoutError where nobody is named, OSError where a namespace or group cannot be made."""
    with ExitStack() as stack:
        job = Job(situation, folder, stalled_after_s, stack)
        begun = job.begin()
        found = job.named(begun)
        hang = found["hang"]
        asked = time.monotonic()
        triage = json.loads(job.kair("triage", "hang", "--json"))["data"]
        took = time.monotonic() - asked
        ranks = {rank for finding in triage["findings"] for rank in finding["ranks"]}
        return Outcome(
            situation,
            tuple(hang["missing"]),
            tuple(sorted(ranks)),
            hang["told"],
            triage["summary"],
            job.seconds,
            took,
        )


class Job:
    """One job, its coordinator and what happens to it; `stack` ends them."""

    def __init__(self, situation: str, folder: Path, stalled_after_s: float, stack: ExitStack) -> None:
        self._situation, self._folder, self._stack = situation, folder, stack
        self._stalled_after_s = stalled_after_s
        self.seconds = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._environment = {
            **os.environ,
            "KAIR_STORE": str(folder / "store"),
            "KAIR_JOB": "hang",
            "KAIR_STALLED_AFTER": str(stalled_after_s),
            "KAIR_AGENT_IDLE": "3",
            "OMP_NUM_THREADS": "1",
        }
        self._log = stack.enter_context((folder / "log").open("w"))

    def begin(self) -> float:
        """Starts it; returns when what happens is under way (monotonic, s)."""
        if self._situation == "host":
            self._make_namespace()
        if self._situation == "oom":
            self._make_memory_group()
        address = "0.0.0.0:0" if self._situation == "host" else "127.0.0.1:0"
        self._start([*KAIR, "coordinator", "--job", "hang", "--listen", address])
        self._until((self._folder / "store/hang/capture/coordinator.json").exists)
        if self._situation != "host":
            self._start_ranks("one", RANKS, [])
        else:
            near = ["--nnodes", "2", "--master-addr", NEAR, "--master-port", "29571", "--node-rank"]
            self._start_ranks("near", RANKS - 1, [*near, "0"], {"GLOO_SOCKET_IFNAME": "kair-a"})
            port = json.loads((self._folder / "store/hang/capture/coordinator.json").read_text())["port"]
            own = {"GLOO_SOCKET_IFNAME": "kair-b", "KAIR_COORDINATOR": f"{NEAR}:{port}"}
            self._start_ranks("far", 1, [*near, "1"], own)
        if self._situation == "oom":
            (self._group / self._limit).write_text(str(2 << 30), encoding="ascii")
        last = SLOW_STEPS if self._situation in ENDED else STEP - 1
        self._until(lambda: self._step() >= last)
        if (number := ENDED.get(self._situation)) is not None:
            os.killpg(self._ranks_process.pid, number)
        if self._situation == "host":
            subprocess.run(["ip", "link", "set", "kair-a", "down"], check=True)
            subprocess.run(f"kill -9 $(ip netns pids {NAMESPACE})", shell=True, check=True)
        return time.monotonic()

    def named(self, begun: float) -> dict[str, Any]:
        """What `kair watch` tells once it names somebody."""
        detected = begun + (0 if self._situation in (*DEATHS, *ENDED) else self._stalled_after_s)

        def is_named() -> bool:
            return (self._status().get("hang") or {}).get("told", "") != ""

        self._until(is_named, most_s=self._stalled_after_s + 60)
        found: dict[str, Any] = json.loads(self.kair("watch", "hang", "--once", "--json"))["data"]
        self.seconds = max(time.monotonic() - detected, 0.0)
        return found

    def kair(self, *words: str) -> str:
        """The output of one command."""
        done = subprocess.run([*KAIR, *words], env=self._environment, stdout=subprocess.PIPE, check=True, text=True)
        return done.stdout

    def _start_ranks(self, host: str, ranks: int, options: list[str], own: dict[str, str] | None = None) -> None:
        torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(ranks)]
        torchrun += options or ["--standalone"]
        victim = -1 if self._situation == "host" else VICTIM
        script = [str(HERE / "hangs_job.py"), self._situation, str(victim), str(STEP)]
        folders = {"KAIR_RUN_DIR": f"{self._folder}/run-{host}", "KAIR_SPOOL_DIR": f"{self._folder}/spool-{host}"}
        inside = ["ip", "netns", "exec", NAMESPACE] if host == "far" else []
        command = [*inside, *KAIR, "capture", "run", "--job", "hang", "--", *torchrun, *script]
        self._ranks_process = self._start(command, {"KAIR_HOST": host, **folders, **(own or {})})

    def _start(self, command: list[str], own: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        environment = {**self._environment, **(own or {})}
        process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log, start_new_session=True)
        self._stack.callback(_end, process)
        return process

    def _make_namespace(self) -> None:
        for command in (
            f"ip netns add {NAMESPACE}",
            f"ip link add kair-a type veth peer name kair-b netns {NAMESPACE}",
            f"ip addr add {NEAR}/24 dev kair-a",
            "ip link set kair-a up",
            f"ip -n {NAMESPACE} addr add {FAR}/24 dev kair-b",
            f"ip -n {NAMESPACE} link set kair-b up",
            f"ip -n {NAMESPACE} link set lo up",
        ):
            subprocess.run(command.split(), check=True)
            if "netns add" in command:
                self._stack.callback(subprocess.run, ["ip", "netns", "del", NAMESPACE], check=False)

    def _make_memory_group(self) -> None:
        """The victim alone moves into it, at its begin."""
        first_version = Path("/sys/fs/cgroup/memory")
        root, self._limit = Path("/sys/fs/cgroup"), "memory.max"
        if first_version.exists():
            lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
            own = next(line for line in lines if ":memory:" in line).split(":", 2)[2]
            root, self._limit = Path(f"{first_version}{own}"), "memory.limit_in_bytes"
        self._group = root / f"kair-hang-{os.getpid()}"
        self._group.mkdir()
        self._stack.callback(_remove, self._group)
        self._environment["MEMORY_GROUP"] = str(self._group)

    def _status(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self._folder / "store/hang/capture/status.json").read_text())
            return found
        return {}

    def _step(self) -> int:
        return max((one["step"] for one in self._status().get("ranks", ())), default=-1)

    @staticmethod
    def _until(holds: Any, most_s: float = 180) -> None:  # noqa: ANN401 - a function without arguments
        until = time.monotonic() + most_s
        while not holds():
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _remove(group: Path) -> None:
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def main() -> int:
    """Prints the table; 1 where any answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SITUATIONS, default=list(SITUATIONS))
    parser.add_argument("--stalled-after", type=float, default=30.0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    options = parser.parse_args()
    lines = [
        "| what happens to rank 1 (dead host: 2) | named by `watch` | by `triage` | where, or how | s | `triage` |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    wrong = 0
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for situation in options.only:
            one = run(situation, folder / situation, options.stalled_after)
            wrong += not one.is_right
            watch, triage = (", ".join(map(str, ranks)) or "nobody" for ranks in (one.watch, one.triage))
            right = "" if one.is_right else " **wrong**"
            lines.append(
                f"| {SITUATIONS[situation]} | {watch} | {triage}{right} | {one.told} | {one.seconds:.1f} | "
                f"{one.triage_s:.1f} s: {one.summary} |"
            )
            print(lines[-1], flush=True)
    if options.write:
        command = f"`python validation/hangs.py --stalled-after {options.stalled_after:g} --write`"
        text = "\n".join((__doc__ or "").strip().splitlines()[4:])
        REPORT.write_text(f"# Hangs and deaths\n{command}, of one run.\n{text}\n\n" + "\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
