"""Say by how much ranks differ in every single step, of takes of two or three ranks, as the recorder measured it.

python validation/real/far_apart.py ANSWERS.json.xz... [--steps 6]

Of each take: the share of the median step by which some rank took longer for itself than all of its peers in the step
in which that was least. Takes with a fault that all ranks share are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from kept_answers import read_answers
from truth import median_step_ns, peers, step_parts

MOST_RANKS: Final = 3
SHARES: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)


def main() -> int:
    """Print how many takes reach each share, healthy and with a fault, and of the latter who accuses nobody; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, nargs="+", help="files that evaluate.py wrote")
    parser.add_argument("--steps", type=int, default=6, help="takes of fewer are left out")
    options = parser.parse_args()
    healthy, faulty = list[float](), list[tuple[float, bool]]()
    for document, answer in looked_at(options.answers, options.steps):
        apart = least_apart(document)
        if apart is not None and not document["take"]["faults"]:
            healthy.append(apart)
        elif apart is not None:
            faulty.append((apart, any(finding["ranks"] for finding in answer["findings"])))
    print(f"{len(healthy)} healthy takes, the largest {max(healthy):.3f}; {len(faulty)} with a fault of single ranks")
    for share in SHARES:
        reached = [accused for apart, accused in faulty if apart > share]
        above = sum(apart > share for apart in healthy)
        print(
            f"more than {share:.2f}: {above} healthy; {len(reached)} with a fault, {reached.count(False)} not accused"
        )
    return 0


def looked_at(files: list[Path], fewest: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The takes of few ranks, and what triage said."""
    for one in (one for path in files for one in read_answers(path) if "answer" in one):
        take = one["document"]["take"]
        shared = any(len(fault["ranks"]) > 1 for fault in take["faults"])
        if take["ranks"] <= MOST_RANKS and take["steps"] >= fewest and not shared:
            yield one["document"], one["answer"]


def least_apart(document: dict[str, Any]) -> float | None:
    """Of the rank that is farthest above its peers in every step, the least share; None where none has peers."""
    own = np.array([[step.own for step in step_parts(document, rank)] for rank in range(len(document["ranks"]))])
    alike = {rank: peers(document, rank) for rank in range(len(own))}
    least = [float((own[rank] - own[of].max(axis=0)).min()) for rank, of in alike.items() if of]
    return max(least) / median_step_ns(document) if least else None


if __name__ == "__main__":
    raise SystemExit(main())
