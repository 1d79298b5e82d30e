"""Lists the process groups and pipeline edges that no test compares, since too few others do the same transfers."""

from collections import defaultdict

from kair_engine.errors import InputError
from kair_engine.localize.excess import JobRoles
from kair_engine.localize.links import FEWEST_SIBLINGS, Family, Link, calls_of, own_times
from kair_engine.results.sensitivity import UntestedLinks
from kair_engine.timeline.clocks import synchronise
from kair_engine.trace.loading import load_step
from kair_engine.trace.model import Trace


def untested_links(trace: Trace) -> tuple[UntestedLinks, ...] | None:
    """Return them as the first chosen step shows, those with the longest transfers first.

    Links that do the same transfers are listed together. None where the step is too large to be held whole.
    """
    try:
        ops = load_step(trace, trace.steps[0])
    except InputError:
        return None
    families: dict[Family, list[tuple[float, Link]]] = defaultdict(list)
    sync = synchronise(ops)
    for link, time in own_times(sync, calls_of(sync, JobRoles.of(trace, ops).role_in(ops)), fewest=1).items():
        if time.siblings + 1 < FEWEST_SIBLINGS:
            families[time.family].append((time.own_ns, link))
    found = [
        UntestedLinks(tuple(link.name for _, link in links), max(own for own, _ in links) / 1e3)
        for links in families.values()
    ]
    return tuple(sorted(found, key=lambda one: (-one.us_per_step, one.links)))
