"""Why it cannot be told who is missing, where it cannot: each reason a warning, the most telling one first."""

from collections.abc import Iterator

from kair_engine.ranks import Rank
from kair_engine.trace.calls import UNTOLD, UNTOLD_GROUP
from kair_engine.trace.model import Job, KairWarning
from kair_engine.trace.warning_texts import listed, short_warning
from kair_engine.triage.hangs.recordings import Sound
from kair_engine.triage.hangs.waits import Waits


def open_questions(job: Job, sound: Sound, waits: Waits) -> Iterator[KairWarning]:
    """What is not recorded, of a job of which nothing can be found; nothing where all are through with all calls."""
    unread = waits.unread
    if untranslated := next((one for one in job.warnings if one.code == "ranks_untold"), None):
        yield untranslated
        return
    lacking = waits.lacking | (waits.waited_for & unread)
    if lacking:
        yield _warning("who_is_missing", _who_is_missing(waits, lacking), lacking)
    untold = {one.rank for one in waits.transfers if one.call.peer == UNTOLD}
    if untold:
        text = "only sends and receives are under way: whom they wait for is not told by the dumps"
        yield _warning("transfers_open", text, untold)
    if lacking or untold:
        return
    if any(one.name == UNTOLD_GROUP for groups in sound.progress.values() for one in groups) and not waits.places:
        text = "calls of different numbers timed out, and of which process groups they are the log does not tell"
        yield KairWarning("group_untold", text)
        return
    part = next((place for place in waits.places if not place.group.is_whole), None)
    if part is not None:
        text = f"all that are known wait in number {part.sequence} of process group {part.group.words}, "
        yield _warning("members_untold", f"{text}and whether it has more members is not told", part.waiting)
    elif job.missing_ranks:
        text = "nobody who left a dump waits for anything: of ranks without one nothing is known"
        yield KairWarning("dumps_missing", text)
    elif unread:
        text = "nobody whose dump is whole waits for anything: what is lost of the others is not known"
        yield _warning("dumps_missing", text, unread)
    elif job.format == "ras":
        text = "RAS tells of no rank that has launched fewer operations; whether they are over it does not tell"
        yield KairWarning("completion_untold", text)
    elif any(one.calls and not one.tells_completion for group in sound.groups for one in group.of_rank.values()):
        text = "all have made the same calls; whether these are over is not told by their backend"
        yield KairWarning("completion_untold", text)


def _who_is_missing(waits: Waits, lacking: frozenset[int]) -> str:
    """Who waits where, and of whom it is not known whether they have called it."""
    ranks = listed(sorted(lacking))
    one = len(lacking) == 1
    where = next((place for place in waits.places if {*place.missing, *place.group.lacking} & lacking), None)
    if where is None:
        held = sorted({one.rank for one in waits.transfers})
        return f"rank {listed(held)} waits in sends and receives, and what rank {ranks} called is not recorded"
    call = f"{where.group.operation(where.sequence)} number {where.sequence} of process group {where.group.words}"
    who = f"of rank {ranks} there is no whole recording" if one else f"of ranks {ranks} there are no whole recordings"
    waiting = len(where.waiting)
    return f"{waiting} {'rank waits' if waiting == 1 else 'ranks wait'} in {call}; {who}, and nobody else is missing"


def _warning(code: str, text: str, ranks: frozenset[int] | set[int] | tuple[int, ...]) -> KairWarning:
    found = short_warning(code, text)
    return KairWarning(found.code, found.message, ranks=tuple(Rank(rank) for rank in sorted(ranks)))
