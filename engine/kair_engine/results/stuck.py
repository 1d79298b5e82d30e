"""Words of a hang that alerts and `kair triage` share: where a rank is stuck, and how many ranks wait for it."""

from kair_engine.results.evidence_kinds import NoDump, NotArrived, signal_name
from kair_engine.results.triage import Finding
from kair_engine.results.watch import StandingRank, WatchResult


def silence(status: WatchResult) -> str:
    """Return `no step has ended for 14 s: the job may hang`; empty where none is overdue."""
    if status.state != "training" or not status.silent_s:
        return ""
    return f"no step has ended for {status.silent_s + status.age_s:.0f} s: the job may hang"


def stuck_at(one: StandingRank) -> str:
    """Return `in forward, at train.py:33 loss_of`, `after input, stopped by SIGSTOP`; empty if nothing is known."""
    last = f"after {one.after.partition(',')[0]}" if one.after else ""
    phase = f"in {one.phase}" if one.phase else last
    where = f"at {one.where}" if one.where else ""
    stopped = f"stopped by {signal_name(one.signal)}" if one.signal and one.state == "lives" else ""
    return ", ".join(filter(None, (phase, where, stopped)))


def waiting_in(finding: Finding) -> str:
    """Return `2 ranks wait in all_reduce number 4`; empty if the calls are unknown."""
    missed = next((one for one in finding.evidence if isinstance(one, NotArrived | NoDump)), None)
    if missed is None or missed.waiting is None or finding.operator is None:
        return ""
    number = "" if missed.sequence is None else f" number {missed.sequence:,.0f}"
    ranks = f"{missed.waiting:,.0f} {'rank waits' if missed.waiting == 1 else 'ranks wait'}"
    return f"{ranks} in {finding.operator}{number}"
