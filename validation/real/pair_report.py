"""Write the table of takes recorded with and without a fault that all ranks share, from what evaluate.py kept.

python validation/real/pair_report.py WITH.json.xz WITHOUT.json.xz [--again AGAIN.json.xz] [--seeds 1500:1600]
    [--each] [--write validation/reports/real.md [--part cpu]]

The price is what triage says that a step would save in the mean without the finding that names the fault; the measured
difference is that of the two takes' mean steps (under a quota some steps are held up, and most are not). Other work on
the machine takes cores from the take without the fault, too, as the recorder measured. Without that it would have been
shorter by up to so much: prices are held against the difference to either.

A machine is not the same for two recordings. Where the job without the fault was recorded a second time, after the one
with it, the difference is to the mean of both, and it is known where these differ by less than a quarter of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from kept_answers import read_answers
from take_report import aligned, put_between
from take_scoring import SHARED
from truth import mean_step_ns

MARK: Final = "what real/pair_report.py writes"
NEAR: Final = 0.25
"""Of the difference."""
Row = tuple[str, ...]


def main() -> int:
    """Print the table, or write it; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("with_fault", type=Path, help="a file that evaluate.py wrote")
    parser.add_argument("without", type=Path, help="the same of the same seeds without their faults")
    parser.add_argument("--again", type=Path, help="the same, recorded after those with their faults")
    parser.add_argument("--seeds", default="0:1000000", help="FIRST:STOP")
    parser.add_argument("--each", action="store_true", help="a row for each job, in place of each kind of fault")
    parser.add_argument("--write", type=Path, help="a page with the markers, between which the table goes")
    parser.add_argument("--part", help="which markers of the page, where it has several")
    options = parser.parse_args()
    without = {seed: (document, answer) for seed, document, answer in answers(options.without)}
    again = {} if options.again is None else {seed: document for seed, document, _ in answers(options.again)}
    first, _, stop = options.seeds.partition(":")
    pairs = [
        Pair.of(document, answer, *without[seed], again.get(seed))
        for seed, document, answer in answers(options.with_fault)
        if int(first) <= seed < int(stop)
    ]
    table = each(pairs) if options.each else by_kind(pairs)
    text = f"{aligned(table)}\n\n{summary(pairs)}"
    print(text)
    if options.write is not None:
        put_between(options.write, f"{MARK} of {options.part}" if options.part else MARK, text)
    return 0


def answers(path: Path) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    for one in read_answers(path):
        yield one["document"]["take"]["seed"], one["document"], one.get("answer", {})


@dataclass(frozen=True)
class Pair:
    """A job with a fault and the same without it; milliseconds a step."""

    document: dict[str, Any]
    before: float
    after: float
    finding: dict[str, Any] | None
    """That names the fault."""
    accused: tuple[bool, bool]
    """Whether a rank is, without the fault and with it."""
    lacked: float
    """That the mean rank's main thread was ready without a core in the job without the fault."""
    apart: float | None
    """By how much two recordings of the job without the fault differ; None where there is one."""

    @classmethod
    def of(
        cls,
        document: dict[str, Any],
        answer: dict[str, Any],
        without: dict[str, Any],
        healthy: dict[str, Any],
        again: dict[str, Any] | None = None,
    ) -> Pair:
        (fault,) = document["take"]["faults"]
        found = [one for one in answer["findings"] if one["cause"] in SHARED[fault["kind"]] and not one["ranks"]]
        accused = tuple(any(one["ranks"] for one in said["findings"]) for said in (healthy, answer))
        references = [without, *([] if again is None else [again])]
        before = [mean_step_ns(of) / 1e6 for of in references]
        lacked = mean(step["delay_ns"] for of in references for rank in of["ranks"] for step in rank["steps"]) / 1e6
        return cls(
            document,
            mean(before),
            mean_step_ns(document) / 1e6,
            found[0] if found else None,
            (accused[0], accused[1]),
            lacked,
            max(before) - min(before) if again is not None else None,
        )

    @property
    def kind(self) -> str:
        name: str = self.document["take"]["faults"][0]["kind"]
        return name.replace("_", " ")

    @property
    def is_known(self) -> bool:
        """Whether recordings without the fault agree on the difference, where there are two."""
        return (self.apart or 0.0) <= NEAR * (self.after - self.before)

    @property
    def ratio(self) -> float | None:
        """Of the price to the difference; None where there is none of either."""
        cost = self.after - self.before
        return None if self.price is None or cost <= 0 else self.price / cost

    @property
    def price(self) -> float | None:
        return None if self.finding is None else self.finding["time_lost_us_per_step"] / 1e3

    @property
    def costs(self) -> tuple[float, float]:
        """The difference to the job without the fault, and to the same had it lacked no core either."""
        return self.after - self.before, self.after - self.before + self.lacked

    @property
    def is_near(self) -> bool:
        """Whether it is priced within a quarter of either difference."""
        return self.price is not None and any(abs(self.price - cost) <= NEAR * cost for cost in self.costs)

    @property
    def is_within(self) -> bool:
        """Whether the range that the price is said to lie in has a part of what is between both."""
        known = self.finding["figures"].get("price_range") if self.finding is not None else None
        least, most = self.costs
        return bool(known) and known["least_us"] <= 1e3 * most and 1e3 * least <= known["most_us"]

    def row(self) -> Row:
        take, price = self.document["take"], self.price
        return (
            f"{take['seed']}: {take['parallel']} {take['model']}, {take['ranks']} ranks",
            self.kind,
            f"{self.before:.1f}",
            "–" if self.apart is None else f"{self.apart:.1f}",
            f"{self.lacked:.1f}",
            f"{self.after:.1f}",
            f"{self.after - self.before:+.1f}",
            "not found" if price is None else f"{price:.1f}",
            "–" if self.finding is None else between(self.finding),
            "–" if self.ratio is None else f"{self.ratio:.2f}",
        )


def each(pairs: Sequence[Pair]) -> list[Row]:
    """A row for each job."""
    head = (
        "job",
        "fault of all ranks",
        "step without, ms",
        "again, differs by, ms",
        "without a core in it, ms",
        "with, ms",
        "difference, ms",
        "priced, ms",
        "at least – at most",
        "priced/measured",
    )
    return [head, *(pair.row() for pair in pairs)]


def by_kind(pairs: Sequence[Pair]) -> list[Row]:
    """A row for each kind of fault: of how many it is known what they cost, and how these are priced."""
    kinds: dict[str, list[Pair]] = {}
    for pair in pairs:
        kinds.setdefault(pair.kind, []).append(pair)
    head = ("fault of all ranks", "jobs", "told", "cost known", "priced within a quarter", "in the range", "price/cost")
    return [head, *(_of_kind(kind, of) for kind, of in sorted(kinds.items()))]


def _of_kind(kind: str, pairs: Sequence[Pair]) -> Row:
    known = [pair for pair in pairs if pair.is_known]
    ratios = sorted(ratio for pair in known if (ratio := pair.ratio) is not None)
    return (
        kind,
        str(len(pairs)),
        str(sum(pair.finding is not None for pair in pairs)),
        str(len(known)),
        f"{sum(pair.is_near for pair in known)} of {len(known)}",
        f"{sum(pair.is_within for pair in known)} of {len(known)}",
        f"{median(ratios):.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})" if ratios else "–",
    )


def summary(pairs: Sequence[Pair]) -> str:
    """How many are told and priced, and in how many a rank is accused."""
    without, beside = (sum(pair.accused[place] for pair in pairs) for place in (0, 1))
    known = [pair for pair in pairs if pair.is_known]
    of_known = (
        f" The difference is known in {len(known)}, of which {priced(known)}."
        if any(pair.apart is not None for pair in pairs)
        else ""
    )
    return (
        f"Told in {sum(pair.finding is not None for pair in pairs)} of {len(pairs)}, {priced(pairs)}.{of_known} A rank "
        f"is accused in {without} jobs without the fault, and in {beside} with it."
    )


def priced(pairs: Sequence[Pair]) -> str:
    """How well."""
    near, within = (sum(getattr(pair, name) for pair in pairs) for name in ("is_near", "is_within"))
    return f"priced within a quarter of the difference in {near}; the range holds it in {within}"


def between(finding: dict[str, Any]) -> str:
    """The range that the price is said to lie in."""
    known = finding["figures"].get("price_range")
    return f"{known['least_us'] / 1e3:.1f} – {known['most_us'] / 1e3:.1f}" if known else "–"


if __name__ == "__main__":
    sys.exit(main())
