"""Kills of real jobs at random moments while their plans change: does every sample count once an epoch?

    python validation/mitigation/kills.py --kills 50 [--seed 1] [--ranks 3] [--claims]

Jobs of train.py run under capture and `kair mitigate run`, one after another until so many kills were made. Killed, by
SIGKILL or SIGTERM, are a worker (or one of its loader's), torchrun, the wrapper, capture's agent, the coordinator;
every few tenths of a second a plan comes, now and then one to leave. With --claims ranks accumulate batches, one rank
is slow, and three of four plans have ranks claim their samples. Whoever is killed whole is started anew, as a scheduler
would. Then the samples' own numbers, which the script writes down, are counted.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from kair_mitigate import orders
from kair_mitigate.audit import audit
from kair_mitigate.job_state import read_state
from kair_mitigate.plans import Plan

HERE = Path(__file__).parent
SAMPLES, EPOCHS, BATCH = 600, 40, 8
CLAIMED = 0.75
LONGEST_S, MOST_KILLS = 2400, 25
"""Of one job."""
KAIR = [sys.executable, "-m", "kair_tui"]
WHO = ("worker", "worker", "worker", "torchrun", "wrapper", "agent", "coordinator")


@dataclass
class Job:
    """One job, from its start to its last epoch's end."""

    store: Path
    name: str
    ranks: int
    random: random.Random
    claims: bool = False
    kills: dict[str, int] = field(default_factory=dict)
    orders: int = 0

    @property
    def folder(self) -> Path:
        """The run's."""
        return self.store / self.name / "mitigate"

    def run(self, most_kills: int) -> int:
        """How often it was killed."""
        self.folder.mkdir(parents=True)
        orders.make_key(self.folder)
        key, began = orders.read_key(self.folder), time.monotonic()
        coordinator, process = self._coordinator(), self._started()
        next_kill = time.monotonic() + self.random.uniform(6, 12)
        try:
            while time.monotonic() - began < LONGEST_S:
                time.sleep(0.25)
                if coordinator.poll() is not None:
                    coordinator = self._coordinator()
                status = process.poll()
                if status == 0:
                    return sum(self.kills.values())
                if status is not None:
                    process = self._started()
                    next_kill = time.monotonic() + self.random.uniform(6, 12)
                self._order(key)
                if time.monotonic() > next_kill and sum(self.kills.values()) < most_kills:
                    self._kill(process, coordinator)
                    next_kill = time.monotonic() + self.random.uniform(0.5, 12)
        finally:
            coordinator.kill()
            process.kill()
        raise SystemExit(f"a job did not end within {LONGEST_S} s")

    def _coordinator(self) -> subprocess.Popen[bytes]:
        return self._popen([*KAIR, "coordinator", "--job", self.name])

    def _started(self) -> subprocess.Popen[bytes]:
        command = [*KAIR, "mitigate", "run", "--job", self.name, "--"]
        command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1000"]
        command += ["--nproc-per-node", str(self.ranks), str(HERE / "train.py"), "--numbers", str(self.folder)]
        command += ["--checkpoint", str(self.folder / "checkpoint.pt")]
        command += ["--epochs", str(EPOCHS), "--batch", str(BATCH), "--workers", str(self.random.choice((0, 1, 2)))]
        command += ["--accumulate", "4", "--slow", f"{self.random.randrange(self.ranks)}:3"] if self.claims else []
        return self._popen([*command, "--per-sample-ms", "1"])

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "KAIR_STORE": str(self.store)}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def _order(self, key: bytes) -> None:
        known = read_state(self.folder)
        if known is None:
            return
        newest = max(plan.version for plan in (known.state.plan, *known.state.coming))
        cuts = sorted(self.random.choices(range(BATCH * self.ranks + 1), k=self.ranks - 1))
        sizes = tuple(b - a for a, b in zip([0, *cuts], [*cuts, BATCH * self.ranks], strict=True))
        self.orders += 1
        kind = "leave" if self.orders % 60 == 0 else "sizes"
        begins = known.state.step + self.random.randrange(20)
        claims = self.claims and self.random.random() < CLAIMED
        orders.write_plan(self.folder, Plan(newest + 1, begins, sizes, kind, claims=claims), key)

    def _kill(self, process: subprocess.Popen[bytes], coordinator: subprocess.Popen[bytes]) -> None:
        torchrun = _children(process.pid)
        workers = [child for one in torchrun for child in _children(one)]
        who = self.random.choice(WHO)
        victims = {
            "worker": workers + [child for one in workers for child in _children(one)],
            "torchrun": torchrun,
            "wrapper": [process.pid],
            "agent": _agents(self.name),
            "coordinator": [coordinator.pid],
        }[who]
        if not victims:
            return
        sent = self.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        try:
            os.kill(self.random.choice(victims), sent)
        except ProcessLookupError:
            return
        if who == "wrapper" and sent == signal.SIGKILL:
            # A scheduler ends what belongs to the step; torchrun's workers have to go by themselves.
            for left in torchrun:
                os.kill(left, signal.SIGKILL)
        name = f"{who} {sent.name}"
        self.kills[name] = self.kills.get(name, 0) + 1


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _agents(job: str) -> list[int]:
    """Capture's agents of a job: they are nobody's children."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            variables = (place / "environ").read_bytes().split(b"\0")
            if b"kair_capture.agent" in (place / "cmdline").read_bytes() and f"KAIR_JOB={job}".encode() in variables:
                found.append(int(place.name))
        except (OSError, ValueError):
            continue
    return found


def main() -> int:
    """Run jobs until there were enough kills; 1 if a sample is missing or counts twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--claims", action="store_true")
    options = parser.parse_args()
    drawn, left, faults, jobs = random.Random(options.seed), options.kills, 0, 0
    kinds: dict[str, int] = {}
    while left > 0:
        # An agent that was killed may still be writing.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as store:
            job = Job(Path(store), f"kills{options.seed}-{jobs}", options.ranks, drawn, options.claims)
            left -= job.run(min(left, MOST_KILLS))
            jobs += 1
            found = audit(sorted(job.folder.glob("numbers-*.jsonl")), SAMPLES, EPOCHS)
            faults += len(found.missing) + len(found.twice)
            print(
                f"job {jobs}: {job.kills}, {job.orders} plans, missing {found.missing}, twice {found.twice}", flush=True
            )
            for name, count in job.kills.items():
                kinds[name] = kinds.get(name, 0) + count
    print(f"{sum(kinds.values())} kills in {jobs} jobs: {kinds}; {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
