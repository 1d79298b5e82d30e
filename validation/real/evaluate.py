"""Ask triage about every recorded take, and keep what it says beside what was measured.

python validation/real/evaluate.py TAKES --out ANSWERS.json.xz [--merge] [--seeds 0:100] [--jobs 2] [--unmeasured]

The answers are small tables: for each take the draw, the measured times and the verdict. `take_report.py` makes the
accuracy table of them. Of captured takes `--unmeasured` leaves out what the kernel measured: then triage has what any
profiler records.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captured import open_captured, unmeasured
from kept_answers import write_answers

if TYPE_CHECKING:
    from kair_engine.trace.model import Trace

UNUSED = {"process_ns", "voluntary", "involuntary", "machine_busy_ns"}
"""Of what was measured in each step."""


def recorded(takes: Path, seeds: str) -> list[Path]:
    """The folders of the takes that were recorded, of `seeds` FIRST:STOP."""
    first, _, stop = seeds.partition(":")
    return [
        path.parent
        for path in sorted(takes.glob("seed*/take.json"))
        if int(first) <= int(path.parent.name.removeprefix("seed")) < int(stop)
    ]


def main() -> int:
    """Evaluate the takes of the command line; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("takes", type=Path, help="the folder that record.py filled")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--merge", action="store_true", help="beside what the file has of other seeds")
    parser.add_argument("--seeds", default="0:1000000", help="FIRST:STOP")
    parser.add_argument("--cache", type=Path, help="where read traces are kept (default: a temporary folder)")
    parser.add_argument("--unmeasured", action="store_true", help="without what capture asked the kernel")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    folders = recorded(options.takes, options.seeds)
    with tempfile.TemporaryDirectory() as temporary, ProcessPoolExecutor(options.jobs) as processes:
        ask = partial(answer, cache=options.cache or Path(temporary), measured=not options.unmeasured)
        answered = list(processes.map(ask, folders, chunksize=4))
    write_answers(options.out, answered, merge=options.merge)
    print(f"{len(answered)} takes, {options.out.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
    return 0


def open_take(folder: Path, cache: Path) -> Trace:
    """The recording of a take, captured or not. Raises KairError where it cannot be read."""
    from kair_engine.recording.opening import open_trace

    captured = (folder / "store").exists()
    return open_captured(folder / "store") if captured else open_trace(folder / "traces", cache=cache, workers=1)


def answer(folder: Path, cache: Path, *, measured: bool = True) -> dict[str, Any]:
    """take.json and what triage says of the traces beside it; a take that cannot be read says why.

    Without the single steps of the reference, and what else of steps no table looks at.
    """
    from kair_engine.errors import KairError
    from kair_engine.triage.analysis import triage
    from kair_tui.render.open_items import open_in_words
    from kair_tui.render.verdict import summary

    document = json.loads((folder / "take.json").read_text(encoding="utf-8"))
    for measured_of_rank in document["ranks"]:
        del measured_of_rank["reference"]["steps"]
        for step in measured_of_rank["steps"]:
            for name in UNUSED & step.keys():
                del step[name]
    begun = time.monotonic()
    try:
        trace = open_take(folder, cache)
        result = triage(trace if measured else unmeasured(trace))
    except KairError as error:
        return {"document": document, "error": str(error)}
    said: dict[str, Any] = {
        "verdict": result.verdict,
        "step_time_us": result.step_time_us,
        "findings": [
            {
                "cause": one.cause,
                "pattern": one.pattern,
                "ranks": list(one.ranks),
                "operator": one.operator,
                "p_value": one.p_value,
                "since": one.since,
                "priced_by": one.priced_by,
                "time_lost_us_per_step": round(one.time_lost_us_per_step, 1),
                "figures": {e.kind: {k: round(float(v), 6) for k, v in e.figures.items()} for e in one.evidence},
            }
            for one in result.findings
        ],
        "warnings": [[one.code, list(one.ranks)] for one in result.warnings],
        "first": result.ranking[0].rank,
        "headline": summary(result),
        "open": [
            {"kind": one.kind, "ranks": list(one.ranks), "share": round(one.share_of_step, 4), "cause": one.cause}
            for one in result.open
        ],
    }
    largest = max(result.open, key=lambda one: one.us_per_step, default=None)
    sentence = None if largest is None else open_in_words(largest, result.step_time_us).sentence
    said["names_largest"] = sentence is not None and sentence in said["headline"]
    return {"document": document, "answer": said, "seconds": round(time.monotonic() - begun, 2)}


if __name__ == "__main__":
    sys.exit(main())
