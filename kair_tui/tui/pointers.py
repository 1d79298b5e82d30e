"""Pointers from views that do not show triage's findings: every ranking has a first rank, guilty or not."""

from collections.abc import Collection

from kair_engine.results.triage import TriageResult
from kair_tui.render.units import spans
from kair_tui.tui.asked_ahead import worst_rank
from kair_tui.tui.screen_registry import find_screen
from kair_tui.tui.session import Session
from kair_tui.tui.widgets.lines import Paragraph


def known_triage(session: Session) -> TriageResult | None:
    """Return triage's result for the chosen steps, if known."""
    answer = session.known(session.question("triage"))
    known: TriageResult | None = None if answer is None else answer.result
    return known


def accused_ranks(triage: TriageResult | None) -> tuple[int, ...]:
    """Return the accused ranks, ascending."""
    return tuple(sorted({int(rank) for one in triage.findings for rank in one.ranks})) if triage is not None else ()


def where_else(session: Session, shown: Collection[int]) -> tuple[str, int] | None:
    """Return a message and a rank to look at, for a view of the ranks `shown` while triage accuses others.

    None if the view shows an accused rank, or nobody is accused.
    """
    triage = known_triage(session)
    accused = accused_ranks(triage)
    if triage is None or not accused or set(accused) & set(shown):
        return None
    noun = "rank" if len(accused) == 1 else "ranks"
    keys = " or ".join(f"{entry.key} {entry.name}" for name in ("rank", "blame") if (entry := find_screen(name)))
    worst = worst_rank(triage)
    return f"nothing here shows {noun} {spans(accused, 4)}, which triage accuses: look at {keys}", (
        accused[0] if worst is None else int(worst)
    )


def led_elsewhere(session: Session, shown: Collection[int], headlines: list[str]) -> list[Paragraph]:
    """Return a view's sentences, and a pointer if it shows no accused rank."""
    pointed = where_else(session, shown)
    if pointed is None:
        return [Paragraph(text, "strong") for text in headlines]
    return [Paragraph(pointed[0], "notice"), *(Paragraph(text, "dim") for text in headlines)]
