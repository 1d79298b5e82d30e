"""Kills of real jobs at random moments while their plans change: does every sample count once an epoch?

    python validation/mitigation/kills.py --kills 50 [--seed 1] [--ranks 3]

Jobs of train.py run under the wrapper of `kair mitigate run`, one after another until so many kills were made. Killed,
by SIGKILL or SIGTERM, are a worker, torchrun, or the wrapper; every few tenths of a second a plan comes, now and then
one to leave. Whoever is killed whole is started anew, as a scheduler would. Then what ranks wrote down is audited.
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
LONGEST_S = 1800
_WRAPPER = """
import os, sys
from pathlib import Path
from kair_mitigate import running
sys.exit(running.run(sys.argv[2:], Path(sys.argv[1]), os.environ))
"""


@dataclass
class Job:
    """One job, from its start to its last epoch's end."""

    folder: Path
    ranks: int
    random: random.Random
    kills: dict[str, int] = field(default_factory=dict)
    orders: int = 0

    def run(self, most_kills: int) -> int:
        """How often it was killed."""
        orders.make_key(self.folder)
        key, began = orders.read_key(self.folder), time.monotonic()
        process = self._started()
        next_kill = time.monotonic() + self.random.uniform(6, 12)
        while time.monotonic() - began < LONGEST_S:
            time.sleep(0.25)
            status = process.poll()
            if status == 0:
                return sum(self.kills.values())
            if status is not None:
                process = self._started()
                next_kill = time.monotonic() + self.random.uniform(6, 12)
            self._order(key)
            if time.monotonic() > next_kill and sum(self.kills.values()) < most_kills:
                self._kill(process)
                next_kill = time.monotonic() + self.random.uniform(0.5, 12)
        raise SystemExit(f"a job did not end within {LONGEST_S} s: {self.folder}")

    def _started(self) -> subprocess.Popen[bytes]:
        script = str(HERE / "train.py")
        command = [sys.executable, "-c", _WRAPPER, str(self.folder)]
        command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1000"]
        command += ["--nproc-per-node", str(self.ranks), script, "--checkpoint", str(self.folder / "checkpoint.pt")]
        command += ["--epochs", str(EPOCHS), "--batch", str(BATCH), "--workers", str(self.random.choice((0, 1, 2)))]
        command += ["--per-sample-ms", "1"]
        log = (self.folder / "log").open("ab")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
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
        orders.write_plan(self.folder, Plan(newest + 1, known.state.step + self.random.randrange(20), sizes, kind), key)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        torchrun = _children(process.pid)
        workers = [child for one in torchrun for child in _children(one)]
        who = self.random.choice(("worker", "worker", "worker", "torchrun", "wrapper"))
        victims = {"worker": workers, "torchrun": torchrun, "wrapper": [process.pid]}[who]
        if not victims:
            return
        sent = self.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        try:
            os.kill(self.random.choice(victims), sent)
        except ProcessLookupError:
            return
        if who == "wrapper" and sent == signal.SIGKILL:
            for (
                left
            ) in torchrun:  # a scheduler ends what belongs to the step; torchrun's workers have to go by themselves
                os.kill(left, signal.SIGKILL)
        name = f"{who} {sent.name}"
        self.kills[name] = self.kills.get(name, 0) + 1


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def main() -> int:
    """Run jobs until there were enough kills; 1 if a sample is missing or counts twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    drawn, left, faults, jobs = random.Random(options.seed), options.kills, 0, 0
    kinds: dict[str, int] = {}
    while left > 0:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(Path(folder), options.ranks, drawn)
            left -= job.run(left)
            jobs += 1
            found = audit(sorted((Path(folder) / "trained").iterdir()), SAMPLES, EPOCHS)
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
