"""How often healthy jobs are `inconclusive` since a rank seems not to be compared, though all were recorded whole.

    python validation/accuracy/coverage_alarms.py --jobs 20

Simulated jobs of several layouts under the usual noise and under several kinds that real machines have, and the sample
recordings; of all of them nothing is missing, so that each warning of timeline/coverage.py is a false alarm. Verdicts
that are inconclusive for another reason are counted beside.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from layouts import STANDARD
from measuring import Row, report, say
from noise_models import MODELS, healthy, write_job
from simulator import JobSpec, simulate
from table import write_table

from kair_engine.recording.opening import open_trace
from kair_engine.timeline.coverage import NOT_COMPARED
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
FIRST_SEED = 1000
"""Seeds below are for tuning."""


def simulated(layout: str, steps: int, jobs: int, folder: Path) -> Iterator[Trace]:
    """Healthy jobs of a layout, one after another."""
    for seed in range(FIRST_SEED, FIRST_SEED + jobs):
        (recording,) = simulate([JobSpec(STANDARD[layout], steps, seed)])
        yield write_table(recording, folder)


def noisy(model: str, jobs: int, folder: Path) -> Iterator[Trace]:
    """Healthy jobs of eight ranks and twelve steps under a kind of noise."""
    for seed in range(FIRST_SEED, FIRST_SEED + jobs):
        yield write_job(healthy(model, 8, 12, seed), folder)


def samples(folder: Path) -> Iterator[Trace]:
    """The sample recordings: their faults are no missing parts."""
    for source in sorted(path.parent for path in SAMPLES.glob("*/truth.json")):
        yield open_trace(source, cache=folder)


def judged(name: str, traces: Iterator[Trace]) -> Row:
    """A row of the table: how many jobs, how many inconclusive, and how many of these for want of coverage."""
    seen: Counter[str] = Counter()
    for trace in traces:
        result = triage(trace)
        alarms = {warning.code for warning in result.warnings} & NOT_COMPARED
        seen.update(["jobs", *(["alarms"] if alarms else []), *alarms])
        if result.verdict == "inconclusive":
            seen.update(["inconclusive", "by coverage" if alarms else "otherwise"])
    say(f"{name}: {dict(seen)}")
    counted = ("jobs", "alarms", *sorted(NOT_COMPARED), "inconclusive", "by coverage", "otherwise")
    return {"of": name, **{what: seen[what] for what in counted}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20, help="of each kind")
    parser.add_argument("--layouts", default="dp4,dp8,dp16,3d64,fsdp8")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for layout in wanted.layouts.split(","):
            rows += [
                judged(f"{layout}, {steps} steps", simulated(layout, steps, wanted.jobs, folder / "table"))
                for steps in (2, 20)
            ]
        rows += [judged(f"noise: {model}", noisy(model, wanted.jobs, folder / "noisy")) for model in MODELS]
        rows.append(judged("samples", samples(folder / "cache")))
    total: Row = {name: sum(int(row[name] or 0) for row in rows) for name in rows[0] if name != "of"}
    report("coverage alarms", [*rows, {"of": "all", **total}], as_json=wanted.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
