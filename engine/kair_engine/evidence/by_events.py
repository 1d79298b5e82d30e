"""Decides parts by events on a rank's device, link, process or host that its peers do not share."""

from dataclasses import replace

from kair_engine.evidence.case import AROUND_NS, Case
from kair_engine.evidence.series import Event
from kair_engine.results.evidence import Explanation
from kair_engine.trace.xids import of_code, stated_cause


def by_events(case: Case) -> Explanation | None:
    """Return what an event of the part says; None if there was none and no log covers the time."""
    if not case.part.events:
        return None
    course, onset = case.known.course, case.onset_ns()
    first, end = int(course.begin_ns.min()), int(course.end_ns.max())
    begin = (first if onset is None else onset) - AROUND_NS
    if case.finding.cause == "hang":
        end += AROUND_NS
    near = [one for one in case.events if _speaks(case, one) and begin <= one.time_ns <= end]
    own = [one for one in near if case.rank in one.ranks]
    if not own:
        return _none(case, first, end)
    event = own[-1] if onset is None else min(own, key=lambda one: abs(one.time_ns - onset))
    innocents = set(case.innocents())
    same = [one for one in near if (one.name, one.value) == (event.name, event.value)]
    alike = innocents & {rank for one in same for rank in one.ranks}
    bound = event.source.bound_s
    return replace(
        case.blank(),
        # One cause has many reporters: an event that half of the peers have as well is not this rank's.
        word="seen" if 2 * len(alike) >= max(len(innocents), 1) else "consistent",
        entity=event.entity,
        measure=event.name,
        own=event.value,
        text=event.text,
        at_ns=event.time_ns,
        bound_ns=None if bound is None else int(bound * 1e9),
        joined_by=event.joined_by,
        fired=len(alike),
        tried=len(innocents),
        sources=(event.source.name,),
        proofs=(event.raw,) if event.raw else (),
    )


def _speaks(case: Case, event: Event) -> bool:
    """Return whether an event counts for the part; XIDs that follow from others or come from the program do not."""
    if event.name not in case.part.events:
        return False
    if event.name != "xid":
        return True
    code = stated_cause(event.text or "") or (None if event.value is None else int(event.value))
    if code is None:
        return False
    row, of = of_code(code), case.part.xids_of
    return not row.is_downstream and not row.is_application and of in (None, row.sign_of)


def _none(case: Case, begin: int, end: int) -> Explanation | None:
    """Return "excluded" if a log of this rank's host covers the whole time and would contain the event, else None."""
    for source in case.known.evidence.sources:
        if source.first_ns is None or source.last_ns is None or source.clock == "unknown":
            continue
        covers = source.first_ns <= begin and source.last_ns >= end
        is_of_host = any(case.rank in case.known.joins.on_host(host) for host in source.hosts)
        if covers and is_of_host and set(case.part.events) <= set(source.observes):
            return replace(case.blank(), word="excluded", sources=(source.name,))
    return None
