"""Print how often a rank lacked a core for far longer than all its peers, in healthy takes and in faulty ones.

python benchmarks/real/lacking.py ANSWERS.json.xz [...]

By what was measured of takes of ENOUGH_STEPS and more steps whose ranks do the same: how long each rank's main thread
was ready without a core, beside the peer that lacked one longest; in three of four steps, and with half of that later.
What MIN_EXTRA_WAIT and STEPS_LONGER in engine/kair_engine/triage/ranks/runqueue_wait.py stand on. The last line is of
ranks whose main thread began to compute for longer than before, beside the others', and that took longer from then
on: what engine/kair_engine/triage/ranks/cpu_time.py looks at by itself.
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

from kair_engine.arrays import Floats
from kair_engine.localize.noise import above_peers, beside_others
from kair_engine.localize.onset import onset
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.triage.ranks.cpu_time import REALISED
from kair_engine.triage.ranks.runqueue_wait import MIN_LATE_FRACTION, STEPS_LONGER

SHARES: Final = (0.06, 0.08, 0.10, 0.12)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, nargs="+", help="files that evaluate.py wrote")
    options = parser.parse_args()
    for path in options.answers:
        documents = [one["document"] for one in read_answers(path) if is_compared(one["document"])]
        print(path.name)
        print(aligned(list(table(documents))))


def is_compared(document: dict[str, Any]) -> bool:
    """Whether several ranks do the same, in enough steps."""
    count = len(document["ranks"])
    return count > 1 and len(peers(document, 0)) + 1 == count and len(step_parts(document, 0)) >= ENOUGH_STEPS


def farthest(document: dict[str, Any]) -> tuple[int, float]:
    """(the rank that lacked a core longest, by what share of the step longer than any other).

    0 of one that did in fewer steps, or was no later for it.
    """
    lacked, own = matrix(document, "delay"), matrix(document, "own")
    most, next_to_it = np.argsort(-trimmed_mean(lacked, TRIM), kind="stable")[:2].tolist()
    apart = lacked[:, most] - lacked[:, next_to_it]
    longer = float(trimmed_mean(apart, TRIM))
    late = float(trimmed_mean(above_peers(own, most), TRIM))
    steadily = (apart > 0).mean() >= STEPS_LONGER and late >= MIN_LATE_FRACTION * longer
    return most, longer / median_step_ns(document) if steadily else 0.0


def began_to_compute(document: dict[str, Any]) -> int | None:
    """The rank that computes for longer than before since some step, and takes longer since by half of that."""
    computed, own = matrix(document, "run"), matrix(document, "own")
    begun = onset(beside_others(computed), median_step_ns(document))
    if begun is None:
        return None
    more, late = (float(trimmed_mean(above_peers(of[begun.at :], begun.place), TRIM)) for of in (computed, own))
    return begun.place if late > REALISED * more else None


def matrix(document: dict[str, Any], part: str) -> Floats:
    """(steps × ranks) of a part of the steps."""
    ranks = [step_parts(document, rank) for rank in range(len(document["ranks"]))]
    return np.array([[getattr(of, part) for of in rank] for rank in ranks], dtype=float).T


def table(documents: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Rows of (what, healthy takes, the guilty one, another): how many have a rank of which it is true."""
    count = sum(not document["take"]["faults"] for document in documents)
    yield "what a rank does", f"healthy, of {count}", "a guilty one", "another"
    far = [(document, *farthest(document)) for document in documents]
    for least in SHARES:
        of = Counter(kind_of(document, rank) for document, rank, share in far if share > least)
        yield (
            f"lacks a core for {100 * least:.0f} % of the step longer than others",
            *(str(of[kind]) for kind in ("healthy", "guilty", "another")),
        )
    began = ((document, began_to_compute(document)) for document in documents)
    of = Counter(kind_of(document, rank) for document, rank in began if rank is not None)
    yield "computes for longer since some step", *(str(of[kind]) for kind in ("healthy", "guilty", "another"))


def kind_of(document: dict[str, Any], rank: int) -> str:
    """Whether the take is healthy, and if not whether the rank is guilty."""
    if not document["take"]["faults"]:
        return "healthy"
    return "guilty" if rank in guilty_ranks(document) else "another"


if __name__ == "__main__":
    main()
