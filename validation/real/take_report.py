"""Write the accuracy table of the real takes into validation/reports/real.md, from what evaluate.py kept.

python validation/real/take_report.py ANSWERS.json.xz [--seeds 100:300] [--misses]
    [--write validation/reports/real.md [--part NAME]]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kept_answers import read_answers
from take_scoring import CLEARED_STEPS, ENOUGH_STEPS, LARGE, NOTABLE, Scored, score

MARK: Final = "what real/take_report.py writes"
_Z: Final = 1.959964

Test = Callable[[Scored], bool]
Row = tuple[str, str, str]


def main() -> int:
    """Print the table, or write it; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, nargs="+", help="files that evaluate.py wrote")
    parser.add_argument("--seeds", default="100:300", help="FIRST:STOP; those below 100 were tuned on")
    parser.add_argument("--write", type=Path, help="a page with the markers, between which the table goes")
    parser.add_argument("--part", help="which markers, where the page has several")
    parser.add_argument("--misses", action="store_true", help="list the takes that were answered wrongly")
    options = parser.parse_args()
    first, _, stop = options.seeds.partition(":")
    answered = [one for path in options.answers for one in read_answers(path)]
    chosen = [one for one in answered if int(first) <= one["document"]["take"]["seed"] < int(stop)]
    unread = sum("answer" not in one for one in chosen)
    takes = [score(one["document"], one["answer"]) for one in chosen if "answer" in one]
    text = page(takes, unread)
    print(text)
    if options.misses:
        print("\n".join(misses(takes)), file=sys.stderr)
    if options.write is not None:
        put_between(options.write, f"{MARK} of {options.part}" if options.part else MARK, text)
    return 0


def page(takes: Sequence[Scored], unread: int = 0) -> str:
    """The table, and what it was made of."""
    head = f"{len(takes)} takes, none left out" + (f"; {unread} more could not be read" if unread else "") + "."
    return "\n".join([head, "", aligned(list(table(takes)))])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown, its first row the heads."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def put_between(page: Path, mark: str, text: str) -> None:
    """Put the text into the page between the markers of this name."""
    begin, end = f"<!-- begin of {mark} -->", f"<!-- end of {mark} -->"
    before, begun, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise SystemExit(f"{page} lacks the lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def table(takes: Sequence[Scored]) -> Iterator[Row]:
    """Rows of (what, share with its 95 % interval, aim)."""

    def row(what: str, aim: str, among: Test, holds: Test) -> Row:
        chosen = [take for take in takes if among(take)]
        return what, share(sum(map(holds, chosen)), len(chosen)), aim

    def healthy(take: Scored) -> bool:
        return take.kind == "healthy"

    def faulty(take: Scored) -> bool:
        return take.kind in {"fault", "two", "link"}

    yield "what was recorded", "share (95 % interval)", "aim"
    yield row("healthy, no load: a rank accused", "≤ 2 %", lambda t: healthy(t) and t.load == "none", _accuses)
    yield row("healthy, under load: a rank accused", "≤ 5 %", lambda t: healthy(t) and t.load != "none", _accuses)
    yield row("healthy: an innocent accused", "", healthy, lambda t: bool(t.innocents))
    enough = f"healthy, ≥ {CLEARED_STEPS} steps"

    def long(take: Scored) -> bool:
        return healthy(take) and take.steps >= CLEARED_STEPS and take.names_largest is not None

    yield row(f"{enough}: no straggler, or a lack of cores that was measured", "≥ 90 %", long, lambda t: t.is_cleared)
    yield row(f"{enough}: inconclusive", "≤ 10 %", long, lambda t: t.verdict == "inconclusive")
    is_open = "inconclusive: the first line names the largest open item"
    yield row(is_open, "≥ 95 %", lambda t: _is_open(t) and t.names_largest is not None, lambda t: bool(t.names_largest))
    yield row("faulty: an innocent accused", "≤ 1 %", faulty, lambda t: bool(t.innocents))
    for least, rank_aim, cause_aim in ((NOTABLE, "≥ 95 %", "≥ 90 %"), (LARGE, "≥ 98 %", "≥ 95 %")):

        def large(take: Scored, least: float = least) -> bool:
            return faulty(take) and take.severity >= least and take.steps >= ENOUGH_STEPS

        what = f"fault of ≥ {least:.0%} of the step, ≥ {ENOUGH_STEPS} steps".replace("%", " %")
        yield row(f"{what}: right rank", rank_aim, large, lambda t: t.right_rank)
        yield row(f"{what}: rank and cause", cause_aim, large, lambda t: t.right_cause)
        if least == NOTABLE:
            yield row(f"{what}: it leads the ranking", "", large, lambda t: t.leads)
            there = f"of these, those in which it was there in ≥ {ENOUGH_STEPS} steps: right rank"
            yield row(there, "", lambda t: large(t) and t.hit >= ENOUGH_STEPS, lambda t: t.right_rank)
            own, system = "of these, what the rank's program does", "of these, what the system does to it"
            yield row(f"{own}: right rank", "", lambda t: large(t) and not t.from_outside, lambda t: t.right_rank)
            yield row(f"{system}: right rank", "", lambda t: large(t) and t.from_outside, lambda t: t.right_rank)

    def short(take: Scored) -> bool:
        return faulty(take) and take.severity >= NOTABLE and take.steps < ENOUGH_STEPS

    def small(take: Scored) -> bool:
        return faulty(take) and take.kind != "link" and take.severity < NOTABLE

    yield row(f"fault of ≥ {NOTABLE:.0%}".replace("%", " %") + ", fewer steps: right rank", "", short, _right)
    yield row("smaller fault: right rank", "", small, _right)
    what = f"slow link, that needs ≥ {NOTABLE:.0%} of the step: its host and cause".replace("%", " %")
    yield row(what, "", lambda t: t.delivering >= NOTABLE, lambda t: t.right_link)
    yield row("slowness of all ranks: named", "≥ 95 %", lambda t: t.kind == "shared", lambda t: t.said_shared)
    yield row("slowness of all ranks: a rank accused", "", lambda t: t.kind == "shared", _accuses)


def misses(takes: Sequence[Scored]) -> Iterator[str]:
    """One line for each take that was answered wrongly."""
    for take in takes:
        large = take.kind in {"fault", "two"} and take.severity >= NOTABLE and take.steps >= ENOUGH_STEPS
        wrong = bool(take.innocents) or (take.kind in {"healthy", "shared"} and bool(take.accused))
        if (
            wrong
            or (take.delivering >= NOTABLE and not take.right_link)
            or (large and not (take.right_rank and take.right_cause))
            or (take.kind == "shared" and not take.said_shared)
        ):
            yield (
                f"seed {take.seed}: {take.kind} {take.fault or ''}, {take.severity:.0%} over {take.steps} steps of "
                f"{take.ranks} ranks, load {take.load}: {take.verdict}, accused {list(take.accused)}"
                f"{''.join(f' {more:+.0%}' for more in take.more)}, right rank "
                f"{take.right_rank}, right cause {take.right_cause}"
            )


def share(hits: int, count: int) -> str:
    """`hits` of `count` with Wilson's interval."""
    if not count:
        return "–"
    rate, square = hits / count, _Z**2
    centre = (rate + square / (2 * count)) / (1 + square / count)
    reach = _Z / (1 + square / count) * math.sqrt(rate * (1 - rate) / count + square / (4 * count**2))
    low, high = (100 * min(max(at, 0.0), 1.0) for at in (centre - reach, centre + reach))
    return f"{hits} of {count}: {100 * rate:.1f} % ({low:.1f}–{high:.1f})"


def _is_open(take: Scored) -> bool:
    return take.verdict == "inconclusive"


def _accuses(take: Scored) -> bool:
    return bool(take.accused)


def _right(take: Scored) -> bool:
    return take.right_rank


if __name__ == "__main__":
    sys.exit(main())
