"""Write the table of takes recorded with and without a fault that all ranks share, from what evaluate.py kept.

python benchmarks/real/pair_report.py WITH.json.gz WITHOUT.json.gz [--write docs/accuracy.md] [--part cpu]

The price is what triage says that a step would save without the finding that names the fault; the measured difference
is that of the two takes' median steps. Other work on the machine takes cores from the take without the fault, too: what
the recorder measured of that is told beside it, and prices are held against both sums as well.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from take_report import aligned, put_between
from take_scoring import SHARED
from truth import median_step_ns

MARK: Final = "what real/pair_report.py writes"
NEAR: Final = 0.25
"""Of the difference."""
Row = tuple[str, ...]


def main() -> int:
    """Print the table, or write it; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("with_fault", type=Path, help="a file that evaluate.py wrote")
    parser.add_argument("without", type=Path, help="the same of the same seeds without their faults")
    parser.add_argument("--write", type=Path, help="a page with the markers, between which the table goes")
    parser.add_argument("--part", help="which markers of the page, where it has several")
    options = parser.parse_args()
    without = {seed: (document, answer) for seed, document, answer in answers(options.without)}
    pairs = [Pair.of(document, answer, *without[seed]) for seed, document, answer in answers(options.with_fault)]
    head = (
        "job",
        "fault of all ranks",
        "step without, ms",
        "without a core in it, ms",
        "with, ms",
        "difference, ms",
        "priced, ms",
        "at least – at most",
        "priced/measured",
    )
    text = f"{aligned([head, *(pair.row() for pair in pairs)])}\n\n{summary(pairs)}"
    print(text)
    if options.write is not None:
        put_between(options.write, f"{MARK} of {options.part}" if options.part else MARK, text)
    return 0


def answers(path: Path) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    for one in json.loads(gzip.decompress(path.read_bytes())):
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

    @classmethod
    def of(
        cls, document: dict[str, Any], answer: dict[str, Any], without: dict[str, Any], healthy: dict[str, Any]
    ) -> Pair:
        (fault,) = document["take"]["faults"]
        found = [one for one in answer["findings"] if one["cause"] in SHARED[fault["kind"]] and not one["ranks"]]
        accused = tuple(any(one["ranks"] for one in said["findings"]) for said in (healthy, answer))
        times = (median_step_ns(of) / 1e6 for of in (without, document))
        lacked = mean(step["delay_ns"] for rank in without["ranks"] for step in rank["steps"]) / 1e6
        return cls(document, *times, found[0] if found else None, (accused[0], accused[1]), lacked)

    @property
    def price(self) -> float | None:
        return None if self.finding is None else self.finding["time_lost_us_per_step"] / 1e3

    @property
    def is_near(self) -> bool:
        """Whether it is priced within a quarter of the difference."""
        return self._is_near(self.after - self.before)

    @property
    def is_near_on_own_cores(self) -> bool:
        """The same, of the difference to the job without the fault as it would be had it lacked no core either."""
        return self._is_near(self.after - self.before + self.lacked)

    def _is_near(self, lost: float) -> bool:
        return self.price is not None and abs(self.price - lost) <= NEAR * lost

    @property
    def is_within(self) -> bool:
        """Whether the difference is in the range that the price is said to lie in."""
        known = self.finding["figures"].get("price_range") if self.finding is not None else None
        return bool(known) and known["least_us"] <= 1e3 * (self.after - self.before) <= known["most_us"]

    def row(self) -> Row:
        take, price = self.document["take"], self.price
        return (
            f"{take['seed']}: {take['parallel']} {take['model']}, {take['ranks']} ranks",
            take["faults"][0]["kind"].replace("_", " "),
            f"{self.before:.1f}",
            f"{self.lacked:.1f}",
            f"{self.after:.1f}",
            f"{self.after - self.before:+.1f}",
            "not found" if price is None else f"{price:.1f}",
            "–" if self.finding is None else between(self.finding),
            "–" if price is None or self.after <= self.before else f"{price / (self.after - self.before):.2f}",
        )


def summary(pairs: Sequence[Pair]) -> str:
    """How many are told and priced, and in how many a rank is accused."""
    names = ("finding", "is_near", "is_near_on_own_cores", "is_within")
    told, near, near_on_own, within = (
        sum(getattr(pair, name) not in (None, False) for pair in pairs) for name in names
    )
    without, beside = (sum(pair.accused[place] for pair in pairs) for place in (0, 1))
    return (
        f"Told in {told} of {len(pairs)}, priced within a quarter of the difference in {near}, or in {near_on_own} had "
        f"the job without the fault lacked no core either; the range holds it in {within}. A rank is accused in "
        f"{without} jobs without the fault, and in {beside} with it."
    )


def between(finding: dict[str, Any]) -> str:
    """The range that the price is said to lie in."""
    known = finding["figures"].get("price_range")
    return f"{known['least_us'] / 1e3:.1f} – {known['most_us'] / 1e3:.1f}" if known else "–"


if __name__ == "__main__":
    sys.exit(main())
