"""Takes that Kair's own capture records, instead of torch.profiler alone: into a store, as of a running job.

Capture is started in each rank before its model is built, and the recorded steps are asked for as an agent does. What
ranks leave becomes fragments by the agent's own code, and a job of the store by the coordinator's: here after the take,
so that neither shares its cores. `python validation/real/captured.py DIR` does so of takes whose stores `record.py`
left for later.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drawing import AnyTake

if TYPE_CHECKING:
    from kair_engine.trace.model import Trace

JOB = "take"
KEY = b"of a take that stays here"


def begin_capture(folder: Path) -> None:
    """In a rank, once it has joined the others."""
    import kair_capture

    os.environ["KAIR_RUN_DIR"] = str(folder / "run")
    kair_capture.start(job=JOB)


def marking_steps(step: Callable[[], None]) -> Callable[[], None]:
    """As its author does where capture finds no optimizer."""
    import kair_capture

    def marked() -> None:
        step()
        kair_capture.step()

    return marked


class CapturedSteps:
    """In place of the profiler: the next so many steps but a few are asked for."""

    def __init__(self, folder: Path, rank: int, first: int, steps: int) -> None:
        self.folder, self.rank, self.first, self.steps = folder, rank, first, steps

    def __enter__(self) -> CapturedSteps:
        from kair_capture.job.windows import ControlWords, Window

        words = ControlWords(self.folder / "run" / f"rank-{self.rank}.control")
        words.ask(Window(self.first, self.steps))
        words.close()
        return self

    def __exit__(self, *_: object) -> None:
        """The window is over with the begin of the step behind it."""

    def step(self) -> None:
        """Capture finds steps by itself."""

    def end(self) -> str:
        """Ends capture; the name of what it left."""
        import kair_capture

        kair_capture.stop()
        name = f"rank-{self.rank}-{self.first}-{self.first + self.steps - 1}.json"
        if not (self.folder / "run" / "windows" / name).exists():
            raise RuntimeError(f"capture left no {name}")
        return name


def into_store(folder: Path, take: AnyTake, kept: Path) -> None:
    """Makes `kept`/store of what the ranks of a take left in `folder`, with the take's job."""
    into_store_of_hosts(folder, take.host_of_rank, kept / "store")


def keep_for_later(folder: Path, _take: AnyTake, kept: Path) -> None:
    """Keeps what the ranks of a take left in `folder` as `kept`/run."""
    (folder / "run").rename(kept / "run")


def into_store_of_hosts(folder: Path, host_of_rank: Sequence[int], store: Path) -> None:
    """Makes a job of a store of what ranks left in `folder`."""
    from kair_capture.agent.spool import Spool
    from kair_capture.agent.windows import HostOfWindow, convert, window_files
    from kair_capture.coordinator.committing import Committer
    from kair_capture.places import JobPlaces

    places = JobPlaces(store, JOB)
    for host in sorted(set(host_of_rank)):
        work, name = folder / f"work{host}", f"host{host}"
        work.mkdir()
        files = [one for one in window_files(folder / "run" / "windows") if host_of_rank[one.rank] == host]
        fragments, refused = convert(files, work, HostOfWindow(name, len(host_of_rank), None, 0))
        if refused:
            raise RuntimeError(f"capture's own window cannot be read: {refused[0][1]}")
        spool = Spool(folder / f"spool{host}", 1 << 34, places.delivered, name)
        for one in fragments:
            spool.put(one.path, one.first, one.last, KEY)
        spool.deliver_waiting()
    Committer(places, KEY).round()


def main() -> int:
    """Makes the stores that the takes of the command line's folder lack; 0."""
    for run in sorted(Path(sys.argv[1]).glob("seed*/run")):
        take = json.loads((run.parent / "take.json").read_text(encoding="utf-8"))["take"]
        with tempfile.TemporaryDirectory() as scratch:
            shutil.move(run, scratch)
            into_store_of_hosts(Path(scratch), take["host_of_rank"], run.parent / "store")
    return 0


def open_captured(folder: Path) -> Trace:
    """The job of a take's store."""
    from kair_engine.recording.job_file import open_job_folder

    return open_job_folder(folder / JOB)


def unmeasured(trace: Trace) -> Trace:
    """The trace without what capture asked: as any profiler records it."""
    from kair_engine.trace.model import StepTimes

    times = trace.job.step_times
    plain = StepTimes(times.rank, times.step, times.begin_ns, times.duration_ns, times.operations)
    return replace(trace, job=replace(trace.job, step_times=plain, limits={}, sent={}))


if __name__ == "__main__":
    sys.exit(main())
