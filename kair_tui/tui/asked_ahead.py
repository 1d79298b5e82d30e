"""Questions asked in the background once the verdict is known, so that likely next answers are ready."""

from collections.abc import Iterator

from kair.app.question import Question
from kair_engine.results.triage import TriageResult
from kair_tui.tui.session import Session

MOST_OUTLIERS = 1_000_000
"""All outliers of a rank."""
_MOST_OPERATIONS = 20_000_000
"""Larger jobs get no unrequested questions: they would take memory and minutes."""


def worst_rank(triage: TriageResult) -> int | None:
    """Return the most suspicious rank of those accused, or of the first finding; None if that is about all ranks."""
    found = triage.findings[0] if triage.findings else None
    about = frozenset() if found is None else frozenset(found.ranks or found.seen_on)
    accused = frozenset(rank for finding in triage.findings for rank in finding.ranks)
    about = accused or about
    if len(about) == len(triage.ranking):
        return None
    return next((row.rank for row in triage.ranking if row.rank in about), None)


def rank_questions(session: Session, rank: int | None) -> dict[str, Question]:
    """Return the questions of a rank's screen. The ranking has its score, and the next rank."""
    return {
        "rank": session.question("rank", rank=rank),
        "pinpoint": session.question("pinpoint", rank=rank, limit=MOST_OUTLIERS),
        "triage": session.question("triage"),
    }


def asked_ahead(session: Session, triage: TriageResult) -> Iterator[Question]:
    """Yield the culprit's rank, the savings of fixes, and the step around its delay, the source of all timelines."""
    rank = worst_rank(triage)
    if rank is None or session.trace.job.operations > _MOST_OPERATIONS:
        return
    of_rank = rank_questions(session, rank)
    yield of_rank["rank"]
    yield of_rank["pinpoint"]
    yield session.question("whatif")
    yield session.question("timeline", around=rank)
