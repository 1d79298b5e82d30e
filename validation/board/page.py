"""The board's page: what was asked, the figures of each tool, and a row for each recording, wrong ones first."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .catalogue import Entry, Truth
from .processes import ADDRESS_SPACE_GB, SECONDS
from .rules import NAMES as RULES
from .scoring import Mark, Score
from .tools import TOOLS, Answer

_ORDER: Final[tuple[Mark, ...]] = ("wrong", "no answer", "unread", "not run", "right", "untold")
SHOWN: Final = 4
"""Ranges of ranks in a cell."""


@dataclass(frozen=True)
class Row:
    """A recording that was asked."""

    entry: Entry
    truth: Truth
    answers: dict[str, Answer]
    scores: dict[str, Score]

    @property
    def by_others(self) -> bool:
        """Return whether both the recording and its truth come from others than Kair's authors."""
        return self.entry.source is not None and not self.truth.by_kair

    @property
    def counted(self) -> bool:
        """Return whether its truth is told."""
        return self.truth.kind != "untold"


def rendered(rows: Sequence[Row], skipped: Sequence[str]) -> str:
    """Return the page's generated part, as Markdown."""
    others = [row for row in rows if row.by_others]
    own = [row for row in rows if not row.by_others]
    parts = [_note(rows, skipped), *_figures("Truth from others", others), *_figures("Truth from Kair's authors", own)]
    parts += ["## Rows", "What Kair got wrong stands first, then what it left open or could not read.", _table(rows)]
    parts += ["## Why a tool gave no answer", _reasons(rows), "## Sources", _sources(rows)]
    return "\n\n".join(part for part in parts if part)


def _note(rows: Sequence[Row], skipped: Sequence[str]) -> str:
    told = sum(row.counted for row in rows)
    lines = [
        f"{len(rows)} recordings were asked; of {len(rows) - told} nobody said what is true: these are shown and "
        f"not counted. A tool has {SECONDS} s and {ADDRESS_SPACE_GB} GB of address space for each."
    ]
    return "\n".join([*lines, *(f"- skipped: {line}" for line in skipped)])


def _figures(title: str, rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    counted = [row for row in rows if row.counted]
    guilty = [row for row in counted if row.truth.kind == "ranks"]
    logs = [row for row in counted if row.truth.kind == "since"]
    nobody = [row for row in counted if row.truth.kind in ("healthy", "job_wide")]
    causes = [row for row in counted if row.truth.causes]
    columns: list[tuple[str, Callable[[str], str]]] = [
        ("tool", str),
        (f"right rank, of {len(guilty)}", lambda tool: str(_count(guilty, tool, "right"))),
        ("wrong", lambda tool: str(_count(guilty, tool, "wrong"))),
        ("no answer", lambda tool: str(_count(guilty, tool, "no answer"))),
        ("cannot read", lambda tool: str(_count(guilty, tool, "unread"))),
        (f"a rank accused, nobody guilty, of {len(nobody)}", lambda tool: _innocents(nobody, tool)),
        (f"right begin, logs, of {len(logs)}", lambda tool: str(_count(logs, tool, "right"))),
        (f"right cause, of {len(causes)}", lambda tool: _causes(causes, tool)),
        ("median price error", lambda tool: _price(counted, tool)),
        ("CPU, × Kair's", lambda tool: _ratio(rows, tool, lambda one: one.cpu_s)),
        ("memory, × Kair's", lambda tool: _ratio(rows, tool, lambda one: one.peak_mb)),
    ]
    lines = [[name for name, _ in columns], *([cell(tool) for _, cell in columns] for tool in TOOLS)]
    return [*([f"## {title}"] if title else []), _aligned(lines)]


def _count(rows: Iterable[Row], tool: str, mark: Mark) -> int:
    return sum(row.scores[tool].rank == mark for row in rows)


def _innocents(rows: Sequence[Row], tool: str) -> str:
    asked = [row for row in rows if row.scores[tool].rank not in ("unread", "not run")]
    return f"{sum(row.scores[tool].innocent for row in asked)} of {len(asked)} read"


def _causes(rows: Sequence[Row], tool: str) -> str:
    told = [row.scores[tool].cause for row in rows]
    return str(told.count("right")) if any(told) else "names none"


def _price(rows: Sequence[Row], tool: str) -> str:
    errors = [error for row in rows if (error := row.scores[tool].price_error) is not None]
    return f"{statistics.median(map(abs, errors)):.0%} of {len(errors)}".replace("%", " %") if errors else "none"


def _ratio(rows: Sequence[Row], tool: str, of: Callable[[Answer], float | None]) -> str:
    """Of the recordings that both read; the rules have no reader of their own."""
    pairs = [
        (of(row.answers[tool]), of(row.answers["Kair"]))
        for row in rows
        if row.answers[tool].said not in ("unread", "stopped") and row.answers["Kair"].said not in ("unread", "stopped")
    ]
    ratios = [one / kair for one, kair in pairs if one and kair]
    return f"{statistics.median(ratios):.1f} (of {len(ratios)})" if ratios else "–"


def _table(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=lambda row: _ORDER.index(_worst(row.scores["Kair"])))
    lines = [["recording", "truth", *TOOLS, "price", "Kair"]]
    for row in ordered:
        kair = row.answers["Kair"]
        error = row.scores["Kair"].price_error
        took = "–" if kair.cpu_s is None or kair.peak_mb is None else f"{kair.cpu_s:.1f} s, {kair.peak_mb:.0f} MB"
        told = [_said(row.answers[tool], row.scores[tool]) for tool in TOOLS]
        price = "" if error is None else f"{error:+.0%}".replace("%", " %")
        lines.append([row.entry.name, _truth(row.truth), *told, price, took])
    return _aligned(lines)


def _worst(score: Score) -> Mark:
    """A right rank with a wrong cause is wrong."""
    return "wrong" if score.cause == "wrong" else score.rank


def _truth(truth: Truth) -> str:
    causes = " or ".join(cause.replace("_", " ") for cause in truth.causes)
    if truth.kind == "ranks":
        return f"{_ranks(truth.ranks)}: {causes}"
    if truth.kind == "since":
        return "slower from step " + ", ".join(map(str, truth.since))
    return {"job_wide": f"nobody: {causes}", "healthy": "healthy"}.get(truth.kind, "unknown")


def _said(answer: Answer, score: Score) -> str:
    mark = _worst(score)
    words = {
        "accused": _ranks(answer.ranks),
        "nobody": "nobody",
        "job_wide": "nobody",
        "open": "left open",
        "unread": "cannot read",
        "not run": "not run",
        "stopped": answer.note,
    }[answer.said]
    causes = ": " + ", ".join(cause.replace("_", " ") for cause in answer.causes) if answer.causes else ""
    said = "slower from step " + ", ".join(map(str, answer.since)) if answer.since else f"{words}{causes}"
    return f"**{mark}**: {said}" if mark == "wrong" else said


def _ranks(ranks: Sequence[int]) -> str:
    pieces: list[list[int]] = []
    for rank in sorted(ranks):
        if pieces and pieces[-1][-1] == rank - 1:
            pieces[-1].append(rank)
        else:
            pieces.append([rank])
    words = [str(one[0]) if len(one) == 1 else f"{one[0]}–{one[-1]}" for one in pieces]
    if len(words) > SHOWN:
        words = [*words[:SHOWN], f"… ({len(ranks)})"]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(words)


def _reasons(rows: Sequence[Row]) -> str:
    """What each program printed where it could not read, and of how many recordings; rules are given Kair's tables."""
    counts = Counter(
        (tool, _general(row.answers[tool].note))
        for row in rows
        for tool in TOOLS
        if tool not in RULES and row.answers[tool].said in ("unread", "stopped")
    )
    lines = [["tool", "recordings", "reason"]]
    lines += [[tool, str(count), reason] for (tool, reason), count in counts.items()]
    return _aligned(lines)


def _general(reason: str) -> str:
    """Names of files and temporary folders differ, and lists of formats are long."""
    return re.sub(r"^\S+ is not a trace: ", "", re.sub(r"/\S*/", "", reason)).partition(": PyTorch")[0]


def _sources(rows: Sequence[Row]) -> str:
    lines = [["recordings", "repository", "commit", "licence", "who said what is true"]]
    seen: dict[tuple[str, str], Row] = {}
    for row in rows:
        seen.setdefault((row.entry.group, row.truth.told_by), row)
    for (group, told), row in seen.items():
        source = row.entry.source
        where = [source.repository, source.commit[:10], source.licence] if source else ["this one", "", ""]
        lines.append([group, *where, told])
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; what others printed cannot end its cells."""
    from take_report import aligned

    return aligned([[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines])
