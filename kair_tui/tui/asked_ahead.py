"""What is asked behind the overview once the verdict is known: what a user looks at next is there when they do."""

from collections.abc import Iterator

from kair.app.question import Question
from kair_engine.results.triage import TriageResult
from kair_tui.tui.session import Session

MOST_OUTLIERS = 1_000_000
"""Of a rank, all that there are."""
_MOST_OPERATIONS = 20_000_000
"""Of a larger job nothing is asked that nobody asked for: it would take memory and minutes."""


def worst_rank(triage: TriageResult) -> int | None:
    """Of the ranks that are accused, or that the first finding is about, the most suspicious; None where it is about
    all of them.
    """
    found = triage.findings[0] if triage.findings else None
    about = frozenset() if found is None else frozenset(found.ranks or found.seen_on)
    accused = frozenset(rank for finding in triage.findings for rank in finding.ranks)
    about = accused or about
    if len(about) == len(triage.ranking):
        return None
    return next((row.rank for row in triage.ranking if row.rank in about), None)


def rank_questions(session: Session, rank: int | None) -> dict[str, Question]:
    """Return what the screen of a rank asks. The ranking tells its score, and which rank comes next."""
    return {
        "rank": session.question("rank", rank=rank),
        "pinpoint": session.question("pinpoint", rank=rank, limit=MOST_OUTLIERS),
        "triage": session.question("triage"),
    }


def asked_ahead(session: Session, triage: TriageResult) -> Iterator[Question]:
    """Yield the culprit's rank, what fixes save, and the step around its delay, which a timeline of any size is made
    from.
    """
    rank = worst_rank(triage)
    if rank is None or session.trace.job.operations > _MOST_OPERATIONS:
        return
    of_rank = rank_questions(session, rank)
    yield of_rank["rank"]
    yield of_rank["pinpoint"]
    yield session.question("whatif")
    yield session.question("timeline", around=rank)
