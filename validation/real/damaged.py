"""Whom triage accuses where a third of each step was lost from one rank's recording.

python validation/real/damaged.py TAKES

Of every healthy take that torch.profiler recorded, three times: the first, the middle and the last third of each step
is cut from the trace of one rank (seed modulo ranks). A line for each take in which a rank is accused, with how much of
the step that rank was measured to take more than its peers; then how many there are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

from evaluate import recorded
from take_scoring import mean_excess

THIRDS: Final = ("first", "middle", "last")
_STEP: Final = "ProfilerStep#"


def main() -> int:
    """Print the lines of the takes of the command line; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("takes", type=Path, help="a folder that record.py filled")
    parser.add_argument("--seeds", default="0:1000000", help="FIRST:STOP")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    options = parser.parse_args()
    healthy = [folder for folder in recorded(options.takes, options.seeds) if not _document(folder)["take"]["faults"]]
    with Pool(options.workers) as pool:
        for third, name in enumerate(THIRDS):
            said = pool.map(partial(accused, third=third), healthy)
            lines = [f"{name} third: {line}" for lines in said for line in lines]
            print("\n".join((*lines, f"{name} third lost: a rank accused in {sum(map(bool, said))} of {len(healthy)}")))
    return 0


def accused(folder: Path, third: int) -> list[str]:
    """What triage says of each rank that it accuses, in words."""
    from kair_engine.recording.opening import open_trace
    from kair_engine.triage.analysis import triage

    document = _document(folder)
    damaged = document["take"]["seed"] % document["take"]["ranks"]
    with tempfile.TemporaryDirectory() as place:
        job = Path(place) / "job"
        job.mkdir()
        for path in sorted((folder / "traces").iterdir()):
            content = _content(path)
            if content["distributedInfo"]["rank"] == damaged:
                cut(content, third)
                (job / path.name.removesuffix(".gz")).write_text(json.dumps(content), encoding="utf-8")
            else:
                shutil.copy(path, job / path.name)
        result = triage(open_trace(job, cache=Path(place) / "cache", workers=1))
    about = f"{folder.name}, rank {damaged} damaged"
    return [
        f"{about}: rank {rank} ({finding.cause}), measured {mean_excess(document, rank):+.0%}"
        for finding in result.findings
        for rank in finding.ranks
    ]


def cut(content: dict[str, Any], third: int) -> None:
    """Takes what begins in that third of a step out of a trace, but for the steps themselves."""
    events = content["traceEvents"]
    steps = [(one["ts"], one["dur"] / 3) for one in events if one.get("ph") == "X" and one["name"].startswith(_STEP)]
    lost = [(begin + third * part, begin + (third + 1) * part) for begin, part in steps]
    content["traceEvents"] = list(_kept(events, lost))


def _kept(events: list[dict[str, Any]], lost: list[tuple[float, float]]) -> Iterator[dict[str, Any]]:
    for one in events:
        marks = one.get("ph") != "X" or one["name"].startswith(_STEP)
        if marks or not any(begin <= one["ts"] < end for begin, end in lost):
            yield one


def _content(path: Path) -> dict[str, Any]:
    text = path.read_bytes()
    content: dict[str, Any] = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
    return content


def _document(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "take.json").read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    sys.exit(main())
