"""What a look at 20 new steps costs whoever follows a job: its coordinator, and `kair watch`.

    python benchmarks/capture/look.py --ranks 2048

The coordinator's look is its tests of these steps and the status that it writes; that it heard them (`scale.py`) is not
part of it. `kair watch` reads this status and draws its page. CPU time, the median of 30 looks.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import Row, report

from kair.app.answers.watch import watch
from kair_capture.agent.step_rows import ROW, Rows
from kair_capture.coordinator.endpoint import Hosts
from kair_capture.coordinator.sampling import Budget, Sampler
from kair_capture.coordinator.status import Remembered, status_of
from kair_capture.coordinator.step_table import Roles, StepTable
from kair_capture.coordinator.watching import Watching
from kair_capture.places import JobPlaces
from kair_capture.wire import Beat, Host
from kair_engine.trace.files import write_whole
from kair_tui.render.answer import Document, PageOptions
from kair_tui.render.watch import VIEW
from kair_tui.render.written import written

STEPS, LOOKS, RANKS_A_HOST = 20, 30, 8
"""New steps of a look; looks, and as many before that do not count."""


class Followed:
    """A made job that its coordinator follows, and its folder in a store."""

    def __init__(self, store: Path, ranks: int) -> None:
        self.places, self.ranks, self.step = JobPlaces(store, "job"), ranks, 0
        self.places.capture.mkdir(parents=True)
        self.table, self.hosts, self.sampler = StepTable(), Hosts(), Sampler(Budget(0.0))
        self.watching = Watching(self.table, self.hosts, self.sampler, Roles())
        self.random = np.random.default_rng(1)
        for number in range(ranks // RANKS_A_HOST):
            of_host = tuple(range(number * RANKS_A_HOST, (number + 1) * RANKS_A_HOST))
            self.hosts.introduce(Host(f"node-{number}", ranks, of_host), number, time.monotonic())
            self.hosts.hear(number, Beat(ranks=RANKS_A_HOST), time.monotonic())

    def take(self) -> None:
        """Hear the next steps."""
        self.table.add(self._rows())
        self.step += STEPS

    def _rows(self) -> Rows:
        rows = np.zeros(self.ranks * STEPS, ROW)
        rows["rank"] = np.tile(np.arange(self.ranks), STEPS)
        rows["step"] = np.repeat(np.arange(self.step, self.step + STEPS), self.ranks)
        rows["begin_us"], rows["step_us"] = 10**15 + rows["step"].astype(np.int64) * 10**6, 10**6
        rows["self_us"] = 0.8e6 * (1 + np.abs(self.random.normal(0, 0.03, len(rows))))
        return rows

    def look(self) -> None:
        """Test them."""
        self.watching.turn(time.monotonic())

    def write(self) -> None:
        """Write the status."""
        status = status_of(
            "job",
            self.table,
            self.hosts,
            self.watching,
            sampler=self.sampler,
            memory=Remembered(),
            refused={},
            now=time.monotonic(),
        )
        write_whole(self.places.status, msgspec.json.encode(status))

    def show(self) -> None:
        """Do what `kair watch` does at each look."""
        status = watch(self.places.store, "job", lambda _: None)
        written(Document("watch", status, None, ()), VIEW, "table", PageOptions(width=100, color=True, height=50))


def took_ms(function: Callable[[], None]) -> float:
    """Return the CPU time of one call."""
    begin = time.process_time()
    function()
    return 1e3 * (time.process_time() - begin)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        job = Followed(Path(folder), options.ranks)
        whose = {
            "coordinator: tests": job.look,
            "coordinator: status": job.write,
            "kair watch": job.show,
        }
        took: dict[str, list[float]] = {who: [] for who in whose}
        for _ in range(2 * LOOKS):
            job.take()
            for who, function in whose.items():
                took[who].append(took_ms(function))
    rows: list[Row] = [
        {"who": who, "ranks": options.ranks, "CPU ms": statistics.median(of[LOOKS:]), "most": max(of[LOOKS:])}
        for who, of in took.items()
    ]
    report(f"a look at {STEPS} new steps", rows, as_json=options.json)


if __name__ == "__main__":
    main()
