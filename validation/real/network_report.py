"""Write the table of takes recorded with and without slow links between hosts, from what evaluate.py kept.

python validation/real/network_report.py WITH.json.xz WITHOUT.json.xz [--seeds 3390:3440]
    [--write validation/reports/real.md]
    [--misses]

A price is held against the difference of the two takes' median steps, where that is a tenth of the step and more: other
work on the machine makes them differ, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pair_report import NEAR, answers
from take_report import Row, aligned, put_between, share
from take_scoring import NOTABLE, Scored, score
from truth import median_step_ns

MARK: Final = "what real/network_report.py writes"

Test = Callable[["Pair"], bool]


@dataclass(frozen=True)
class Pair:
    """A job with slow links and the same without; milliseconds a step."""

    beside: Scored
    without: Scored
    hosts: int
    lost: float
    """By how much the step is longer with them."""
    step: float
    priced: float | None
    """What triage says that the network costs; None where it says nothing of it."""

    @classmethod
    def of(
        cls, document: dict[str, Any], answer: dict[str, Any], without: dict[str, Any], healthy: dict[str, Any]
    ) -> Pair:
        before, step = (median_step_ns(of) / 1e6 for of in (without, document))
        told = [
            one["time_lost_us_per_step"] / 1e3
            for one in answer["findings"]
            if {"slow_network", "network"} & one["figures"].keys()
        ]
        hosts = len(set(document["take"]["host_of_rank"]))
        scores = score(document, answer), score(without, healthy)
        return cls(*scores, hosts, step - before, step, max(told, default=None))

    @property
    def of_all(self) -> bool:
        """Whether all hosts' links are slow."""
        return self.beside.kind == "shared"

    @property
    def accuses_innocent(self) -> bool:
        """Whether a rank is accused whose host's network is no slower than others', and that is not slower either."""
        return bool(self.beside.innocents)

    @property
    def is_named(self) -> bool:
        """Whether the network is told: that of its host, or of all and of nobody's."""
        return self.beside.said_shared and not self.beside.accused if self.of_all else self.beside.right_link

    @property
    def is_near(self) -> bool:
        """Whether it is priced within a quarter of the difference."""
        return self.priced is not None and abs(self.priced - self.lost) <= NEAR * self.lost

    @property
    def needs(self) -> bool:
        """Whether what is sent needs a notable share of the step."""
        return self.beside.delivering >= NOTABLE

    @property
    def costs(self) -> bool:
        """Whether that makes the step longer by a notable share of it, too."""
        return self.needs and self.lost >= NOTABLE * self.step


def main() -> int:
    """Print the table, or write it; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("with_links", type=Path, help="a file that evaluate.py wrote")
    parser.add_argument("without", type=Path, help="the same of the same seeds without their slow links")
    parser.add_argument("--seeds", default="0:1000000", help="FIRST:STOP")
    parser.add_argument("--write", type=Path, help="a page with the markers, between which the table goes")
    parser.add_argument("--misses", action="store_true", help="list the takes that were answered wrongly")
    options = parser.parse_args()
    without = {seed: (document, answer) for seed, document, answer in answers(options.without)}
    first, _, stop = options.seeds.partition(":")
    pairs = [
        Pair.of(document, answer, *without[seed])
        for seed, document, answer in answers(options.with_links)
        if int(first) <= seed < int(stop)
    ]
    text = f"{len(pairs)} jobs, none left out.\n\n{aligned(list(table(pairs)))}"
    print(text)
    if options.misses:
        print("\n".join(misses(pairs)), file=sys.stderr)
    if options.write is not None:
        put_between(options.write, MARK, text)
    return 0


def table(pairs: Sequence[Pair]) -> Iterator[Row]:
    """Rows of (what, share with its 95 % interval, aim)."""

    def row(what: str, aim: str, among: Test, holds: Test) -> Row:
        chosen = [pair for pair in pairs if among(pair)]
        return what, share(sum(map(holds, chosen)), len(chosen)), aim

    def every(_pair: Pair) -> bool:
        return True

    notable = f"{NOTABLE:.0%}".replace("%", " %")
    yield "what was recorded", "share (95 % interval)", "aim"
    yield row("links as they are: a rank accused", "≤ 5 %", every, lambda pair: bool(pair.without.accused))
    yield row("slow links: an innocent accused", "≤ 1 %", every, lambda pair: pair.accuses_innocent)
    for of_all, whose, told in ((False, "slow link of one host", "its host"), (True, "slow links of all", "told")):
        needs = [pair for pair in pairs if pair.of_all is of_all and pair.needs]
        yield f"{whose}, needs ≥ {notable} of the step: {told}", share(*_named(needs)), ""
        costs = [pair for pair in needs if pair.costs]
        yield f"and makes it longer by ≥ {notable} of it: {told}", share(*_named(costs)), ""
    near = f"of these that are told: priced within {NEAR:.0%} of the difference".replace("%", " %")
    yield row(near, "", lambda pair: pair.costs and pair.is_named, lambda pair: pair.is_near)


def _named(pairs: Sequence[Pair]) -> tuple[int, int]:
    return sum(pair.is_named for pair in pairs), len(pairs)


def misses(pairs: Sequence[Pair]) -> Iterator[str]:
    """One line for each job that was answered wrongly."""
    for pair in pairs:
        if pair.without.accused or pair.accuses_innocent or (pair.needs and not pair.is_named):
            yield (
                f"seed {pair.beside.seed}: {pair.beside.fault}, {pair.hosts} hosts, {pair.beside.delivering:.0%} of "
                f"{pair.step:.1f} ms, {pair.lost:+.1f} by it, priced {pair.priced}: {pair.beside.verdict}, "
                f"accused {list(pair.beside.accused)}, without it {list(pair.without.accused)}"
            )


if __name__ == "__main__":
    sys.exit(main())
