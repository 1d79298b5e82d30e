"""`kair triage` of a watched job of many ranks and steps of which nothing was sampled: CPU time and memory.

    python benchmarks/capture/long_history.py --ranks 1000 --steps 10000

Makes the steps as a coordinator keeps them; from the middle on one rank's own time is a fifth longer. The command is
measured as a whole process, and must name this rank.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import Row, in_fresh_process, report, run_child

from kair_capture.agent.step_rows import ROW
from kair_capture.coordinator.step_log import ROWS_A_PART, write_part
from kair_capture.places import JobPlaces
from kair_engine.results.watch import Sampling, WatchedRank, WatchResult
from kair_engine.trace.files import make_folder

STEP_US, SLOWER = 1_000_000, 1.2
RANKS_A_HOST = 8


def make(store: Path, ranks: int, steps: int) -> int:
    """Make the job `job`; return its slow rank."""
    places, slow, random = JobPlaces(store, "job"), ranks * 2 // 3, np.random.default_rng(1)
    places.capture.mkdir(parents=True)
    make_folder(places.steps)
    at_a_time = max(ROWS_A_PART // ranks, 1)
    for number, first in enumerate(range(0, steps, at_a_time)):
        step = np.arange(first, min(first + at_a_time, steps))
        own = 0.7 * STEP_US * (1 + 0.02 * random.standard_normal((len(step), ranks)))
        own[step >= steps // 2, slow] *= SLOWER
        rows = np.zeros(own.size, ROW)
        rows["rank"], rows["step"] = np.tile(np.arange(ranks), len(step)), np.repeat(step, ranks)
        longest = np.repeat(own.max(axis=1) + 2000, ranks)
        rows["begin_us"] = 10**15 + rows["step"].astype(np.int64) * 2 * STEP_US
        rows["step_us"], rows["self_us"], rows["waited_us"] = longest, own.ravel(), longest - own.ravel()
        rows["forward_us"], rows["cpu_us"] = 0.4 * own.ravel(), 0.8 * own.ravel()
        rows["backward_us"] = rows["waited_us"] + 0.5 * own.ravel()
        write_part(places.steps / f"part-{number + 1:08}.parquet", rows)
    of_ranks = tuple(
        WatchedRank(rank, f"node{rank // RANKS_A_HOST}", steps - 1, None, None, None, 0.0, slow=False)
        for rank in range(ranks)
    )
    sampling, now = Sampling(0.01, 0.0, 0, 0, 0, ()), datetime.now(UTC).isoformat()
    status = WatchResult("job", now, "over", steps - 1, None, None, ranks, of_ranks, (), (), sampling, {})
    places.status.write_bytes(msgspec.json.encode(status))
    return slow


def main() -> None:
    """Make, ask and print. Raises SystemExit where another rank is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        slow = in_fresh_process(make, Path(folder), options.ranks, options.steps)
        command = [sys.executable, "-m", "kair_tui", "triage", "job", "--store", folder, "--json"]
        took = run_child(command)
    named = [rank for one in json.loads(took.stdout)["data"]["findings"] for rank in one["ranks"]]
    if named != [slow]:
        raise SystemExit(f"rank {slow} is slow, and named are {named}")
    row: Row = {"ranks": options.ranks, "steps": options.steps, "CPU s": took.cpu_s, "peak MB": took.peak_mb}
    report("triage of a history of steps", [row], as_json=options.json)


if __name__ == "__main__":
    main()
