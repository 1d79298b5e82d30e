"""Write what culprits are priced at, beside what the same job took without them, from what evaluate.py kept.

python validation/real/price_report.py ANSWERS.json.xz [--seeds 2340:9999]
    [--write validation/reports/real.md [--part NAME]]

Of each take of one fault of a single rank that took a quarter of the step, and was found: the price that triage puts
beside that rank, and by how much longer the recorded steps were than those of the same processes before the fault
began. The latter are longer by as much as they are in the median healthy take, since nothing was recorded then.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from kept_answers import read_answers
from take_report import aligned, put_between
from take_scoring import ENOUGH_STEPS, LARGE, score
from truth import mean_step_ns

MARK: Final = "what real/price_report.py writes"
WITHIN: Final = 0.25
FEWEST: Final = 5
"""Takes of a fault's kind, to be a row of its own."""
MOST: Final = 10.0
"""Times what was gained: more stands for as much, also where nothing was."""
Row = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Price:
    """Of one culprit, in ms a step."""

    fault: str
    from_outside: bool
    priced: float
    gained: float
    """What the job took longer than without it."""

    @property
    def share(self) -> float:
        """Priced, of what there was to gain."""
        return min(self.priced / self.gained, MOST) if self.gained > 0 else MOST


def main() -> int:
    """Print the table, or write it; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, help="a file that evaluate.py wrote")
    parser.add_argument("--seeds", default="2340:9999", help="FIRST:STOP")
    parser.add_argument("--write", type=Path, help="a page with the markers, between which the table goes")
    parser.add_argument("--part", help="which markers, where the page has several")
    options = parser.parse_args()
    first, _, stop = options.seeds.partition(":")
    answered = [
        one
        for one in read_answers(options.answers)
        if "answer" in one and int(first) <= one["document"]["take"]["seed"] < int(stop)
    ]
    text = page(answered)
    print(text)
    if options.write is not None:
        put_between(options.write, f"{MARK} of {options.part}" if options.part else MARK, text)
    return 0


def page(answered: Sequence[Mapping[str, Any]]) -> str:
    """The table, and how far off can be what was gained."""
    healthy = [one["document"] for one in answered if not one["document"]["take"]["faults"]]
    longer = [mean_step_ns(document) / _before_ns(document) for document in healthy]
    usual = median(longer)
    least, *_, most = (of / usual - 1 for of in quantiles(longer, n=10))
    found = [price for one in answered if (price := price_of(one, usual)) is not None]
    head = (
        f"{len(found)} culprits. Of {len(healthy)} healthy takes four of five took {least:+.0%} to {most:+.0%} longer "
        "than was to be expected from before."
    ).translate({ord("%"): " %", ord("-"): "−"})
    return "\n".join([head, "", aligned(list(table(found)))])


def price_of(one: Mapping[str, Any], usual: float) -> Price | None:
    """None where there is not just one large fault of one rank, or it is not found."""
    document, answer = one["document"], one["answer"]
    taken, faults = score(document, answer), document["take"]["faults"]
    if taken.kind != "fault" or len(faults) != 1 or not taken.right_rank:
        return None
    if taken.severity < LARGE or taken.steps < ENOUGH_STEPS:
        return None
    guilty = set(faults[0]["ranks"])
    lost_us = next(of["time_lost_us_per_step"] for of in answer["findings"] if guilty & set(of["ranks"]))
    without_ns = usual * _before_ns(document)
    return Price(faults[0]["kind"], taken.from_outside, lost_us / 1e3, (mean_step_ns(document) - without_ns) / 1e6)


def table(found: Sequence[Price]) -> Iterator[Row]:
    """Rows of (what, culprits, priced of gained, all prices of all gains, within a quarter)."""
    yield "culprit", "found", "priced/gained: median (half of them)", "all prices/all gains", "within a quarter"
    yield _row("all", found)
    yield _row("what the rank's program does", [one for one in found if not one.from_outside])
    yield _row("what the system does to it", [one for one in found if one.from_outside])
    of_kind: dict[str, list[Price]] = defaultdict(list)
    for one in found:
        of_kind[one.fault].append(one)
    for kind, some in sorted(of_kind.items(), key=lambda item: -len(item[1])):
        if len(some) >= FEWEST:
            yield _row(kind.replace("_", " "), some)


def _row(what: str, some: Sequence[Price]) -> Row:
    if len(some) < 2:
        return what, str(len(some)), "–", "–", "–"
    shares = [one.share for one in some]
    lower, middle, upper = quantiles(shares, n=4)
    sums = sum(one.priced for one in some) / sum(one.gained for one in some)
    near = sum(abs(share - 1) <= WITHIN for share in shares)
    return what, str(len(some)), f"{middle:.2f} ({lower:.2f}–{upper:.2f})", f"{sums:.2f}", f"{near} of {len(some)}"


def _before_ns(document: Mapping[str, Any]) -> float:
    """The step before any fault, of the median rank."""
    return median(float(rank["reference"]["step_ns"]) for rank in document["ranks"])


if __name__ == "__main__":
    raise SystemExit(main())
