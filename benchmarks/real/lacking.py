"""Print how often a rank lacked a core for far longer than all its peers, in healthy takes and in faulty ones.

python benchmarks/real/lacking.py ANSWERS.json.xz [...]

By what was measured of takes of ENOUGH_STEPS and more steps whose ranks do the same: how long each rank's main thread
was ready without a core, beside the peer that lacked one longest; in three of four steps, and with half of that later.
What FAR_LACKING and MOSTLY in engine/kair_engine/triage/ranks/most_lacking.py stand on.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from kept_answers import read_answers
from take_report import aligned
from take_scoring import ENOUGH_STEPS
from truth import guilty_ranks, median_step_ns, peers, step_parts

from kair_engine.localize.noise import above_peers
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.triage.ranks.most_lacking import LATE_BY, MOSTLY

SHARES: Final = (0.06, 0.08, 0.10, 0.12)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, nargs="+", help="files that evaluate.py wrote")
    options = parser.parse_args()
    for path in options.answers:
        looked_at = [(one["document"], farthest(one["document"])) for one in read_answers(path)]
        print(path.name)
        print(aligned(list(table([(document, far) for document, far in looked_at if far is not None]))))


def farthest(document: dict[str, Any]) -> tuple[int, float] | None:
    """(the rank that lacked a core longest, by what share of the step longer than any other); None of short takes.

    0 of one that did in fewer steps, or was no later for it.
    """
    ranks = range(len(document["ranks"]))
    if len(peers(document, 0)) + 1 != len(ranks) or len(ranks) < 2:
        return None
    parts = [step_parts(document, rank) for rank in ranks]
    lacked, own = (np.array([[getattr(of, name) for of in rank] for rank in parts]).T for name in ("delay", "own"))
    if len(lacked) < ENOUGH_STEPS:
        return None
    most, next_to_it = np.argsort(-trimmed_mean(lacked.astype(float), TRIM), kind="stable")[:2].tolist()
    apart = (lacked[:, most] - lacked[:, next_to_it]).astype(float)
    longer = float(trimmed_mean(apart, TRIM))
    late = float(trimmed_mean(above_peers(own.astype(float), most), TRIM))
    steadily = (apart > 0).mean() >= MOSTLY and late >= LATE_BY * longer
    return most, longer / median_step_ns(document) if steadily else 0.0


def table(takes: list[tuple[dict[str, Any], tuple[int, float]]]) -> Iterator[tuple[str, ...]]:
    """Rows of (share, healthy takes, the guilty one, another): how many have a rank that far from all others."""
    kinds = Counter("healthy" if not document["take"]["faults"] else "faulty" for document, _ in takes)
    yield "beyond all others, of the step", f"healthy, of {kinds['healthy']}", "a guilty one", "another"
    for least in SHARES:
        of = Counter(kind_of(document, rank) for document, (rank, share) in takes if share > least)
        yield f"{100 * least:.0f} %", str(of["healthy"]), str(of["guilty"]), str(of["another"])


def kind_of(document: dict[str, Any], rank: int) -> str:
    """Whether the take is healthy, and if not whether the rank is guilty."""
    if not document["take"]["faults"]:
        return "healthy"
    return "guilty" if rank in guilty_ranks(document) else "another"


if __name__ == "__main__":
    main()
