"""Say what healthy takes show of single ranks, of the folders of takes that were captured.

python validation/real/healthy_takes.py TAKES... [--alone]

By class of time the most by which one of two or three ranks was above its peers in every step, of takes of six steps
and more; and of the step, what the mean rank lacked a core for. `--alone`: of takes without load and pinning.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from captured import open_captured

if TYPE_CHECKING:
    from kair_engine.localize.excess import JobExcess

MOST_RANKS, FEWEST_STEPS = 3, 6
LARGEST: Final = 5
"""Takes to name."""


def main() -> int:
    """Print it for the folders of the command line; 0."""
    from kair_engine.localize.excess import CLASSES, job_excess
    from kair_engine.timeline.host_time import counted_times

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("takes", type=Path, nargs="+", help="folders that record.py filled")
    parser.add_argument("--alone", action="store_true", help="only without load, on any core")
    options = parser.parse_args()
    apart: dict[str, list[tuple[float, str]]] = {name: [] for name in CLASSES}
    lacked: list[tuple[float, str]] = []
    for folder, take in healthy(options.takes, alone=options.alone):
        trace = open_captured(folder / "store")
        if (counted := counted_times(trace)) is not None:
            share = float(counted.lacked_ns.mean()) / float(np.mean(trace.job.step_times.duration_ns))
            lacked.append((share, folder.name))
        if take["ranks"] <= MOST_RANKS and take["steps"] >= FEWEST_STEPS:
            job = job_excess(trace)
            for row, name in enumerate(CLASSES):
                apart[name].append((least_apart(job, row), folder.name))
    for name, shares in apart.items():
        print(f"{name}: above its peers in every step, of {len(shares)} takes {told(shares)}")
    print(f"without a core, of {len(lacked)} takes {told(lacked)}")
    return 0


def healthy(roots: list[Path], *, alone: bool) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folders of takes without a fault, with what was drawn."""
    for path in sorted(path for root in roots for path in root.glob("seed*/take.json")):
        take = json.loads(path.read_text(encoding="utf-8"))["take"]
        if not take["faults"] and not (alone and (take["load"], take["pinning"]) != ("none", "none")):
            yield path.parent, take


def least_apart(job: JobExcess, row: int) -> float:
    """Of the rank that is farthest above all peers of its role in every step, the least share; 0 where none is."""
    most = 0.0
    for role in np.unique(job.role):
        of_role = np.nan_to_num(job.by_step_ns[:, row, job.role == role]) / job.step_time_ns
        for place in range(of_role.shape[1] if of_role.shape[1] > 1 else 0):
            others = np.delete(of_role, place, axis=1).max(axis=1)
            most = max(most, float((of_role[:, place] - others).min()))
    return most


def told(shares: list[tuple[float, str]]) -> str:
    return ", ".join(f"{share:.4f} ({name})" for share, name in sorted(shares, reverse=True)[:LARGEST])


if __name__ == "__main__":
    sys.exit(main())
