"""Asks every recording of the catalogue that is here, and writes the page."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

VALIDATION = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(VALIDATION / "accuracy"), str(VALIDATION / "real")]

from .catalogue import Entry, read_catalogue  # noqa: E402
from .copies import NotHereError, read_files  # noqa: E402
from .inputs import Prepared, prepare  # noqa: E402
from .page import Row, rendered  # noqa: E402
from .scoring import score  # noqa: E402
from .tools import Answer, ask_hta, ask_kair, ask_rules, ask_tracelens  # noqa: E402

PAGE = VALIDATION / "reports" / "board.md"


def main() -> None:
    """Ask, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    named = os.environ.get("KAIR_BOARD_COPIES")
    parser.add_argument("--copies", type=Path, default=named, help="fetched repositories, at DIR/OWNER/NAME")
    parser.add_argument("--hta-python", type=Path, help="that has Holistic Trace Analysis installed")
    parser.add_argument("--tracelens-python", type=Path, help="that has TraceLens installed")
    parser.add_argument("--only", default="", help="recordings whose name or group begins with this")
    parser.add_argument("--write", action="store_true", help=f"the page to {PAGE.relative_to(VALIDATION.parent)}")
    options = parser.parse_args()
    if options.only and options.write:
        parser.error("the page is written of all recordings: --write goes without --only")
    rows, skipped = [], []
    for entry in read_catalogue():
        if not (entry.name.startswith(options.only) or entry.group.startswith(options.only)):
            continue
        try:
            files = read_files(entry, options.copies)
        except NotHereError as reason:
            skipped.append(f"{entry.name}: {reason}")
            print(f"skipped: {skipped[-1]}", file=sys.stderr)
            continue
        rows.append(asked(entry, files, options.hta_python, options.tracelens_python))
        print(f"{rows[-1].scores['Kair'].rank:10} {entry.name}: {rows[-1].answers['Kair'].note}", file=sys.stderr)
    text = rendered(rows, skipped)
    if options.write:
        # Not before: it loads more than the smallest program that is measured.
        from take_report import put_between

        put_between(PAGE, "what validation/board writes", text)
    else:
        print(text)


def asked(entry: Entry, files: dict[str, bytes], hta: Path | None, tracelens: Path | None) -> Row:
    """Return a recording's row."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = _in_fresh_process(entry, files, Path(folder))
        answers: dict[str, Answer] = {
            "Kair": ask_kair(prepared),
            "HTA": ask_hta(prepared, hta),
            "TraceLens": ask_tracelens(prepared, tracelens),
            **ask_rules(prepared),
        }
    truth = prepared.truth
    scores = {tool: score(truth, answer, candidates=tool == "HTA") for tool, answer in answers.items()}
    return Row(entry, truth, answers, scores)


def _in_fresh_process(entry: Entry, files: dict[str, bytes], folder: Path) -> Prepared:
    """What prepares recordings is larger than some of what is measured, so that this process does without."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(prepare, entry, files, folder).result()


if __name__ == "__main__":
    main()
