"""Write the table of takes recorded with and without a fault that all ranks share, from what evaluate.py kept.

python benchmarks/real/pair_report.py WITH.json.gz WITHOUT.json.gz [--write docs/accuracy.md] [--part cpu]

The price is what triage says that a step would save without the finding that names the fault; the measured difference
is that of the two takes' median steps.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from take_report import aligned, put_between
from take_scoring import SHARED
from truth import median_step_ns

MARK: Final = "what real/pair_report.py writes"
Row = tuple[str, ...]


def main() -> int:
    """Print the table, or write it; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("with_fault", type=Path, help="a file that evaluate.py wrote")
    parser.add_argument("without", type=Path, help="the same of the same seeds without their faults")
    parser.add_argument("--write", type=Path, help="a page with the markers, between which the table goes")
    parser.add_argument("--part", help="which markers of the page, where it has several")
    options = parser.parse_args()
    without = {seed: document for seed, document, _ in answers(options.without)}
    rows = [row(document, without[seed], answer) for seed, document, answer in answers(options.with_fault)]
    head = (
        "job",
        "fault of all ranks",
        "step without, ms",
        "with, ms",
        "difference, ms",
        "priced, ms",
        "at least – at most",
        "priced/measured",
    )
    text = aligned([head, *rows])
    print(text)
    if options.write is not None:
        put_between(options.write, f"{MARK} of {options.part}" if options.part else MARK, text)
    return 0


def answers(path: Path) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    for one in json.loads(gzip.decompress(path.read_bytes())):
        yield one["document"]["take"]["seed"], one["document"], one.get("answer", {})


def row(document: dict[str, Any], without: dict[str, Any], answer: dict[str, Any]) -> Row:
    """One pair."""
    take, (fault,) = document["take"], document["take"]["faults"]
    causes = SHARED[fault["kind"]]
    found = [one for one in answer["findings"] if one["cause"] in causes and not one["ranks"]]
    before, after = median_step_ns(without) / 1e6, median_step_ns(document) / 1e6
    price = found[0]["time_lost_us_per_step"] / 1e3 if found else None
    return (
        f"{take['seed']}: {take['parallel']} {take['model']}, {take['ranks']} ranks",
        fault["kind"].replace("_", " "),
        f"{before:.1f}",
        f"{after:.1f}",
        f"{after - before:+.1f}",
        "not found" if price is None else f"{price:.1f}",
        between(found[0]) if found else "–",
        "–" if price is None or after <= before else f"{price / (after - before):.2f}",
    )


def between(finding: dict[str, Any]) -> str:
    """The range that the price is said to lie in."""
    known = finding["figures"].get("price_range")
    return f"{known['least_us'] / 1e3:.1f} – {known['most_us'] / 1e3:.1f}" if known else "–"


if __name__ == "__main__":
    sys.exit(main())
