"""Puts alerts into words: a line each, for logs and for `kair watch`."""

from typing import Final

from kair_engine.results.evidence_kinds import signal_name
from kair_engine.results.stuck import stuck_at
from kair_engine.results.watch import Alert, StandingRank

_UNKNOWN_END: Final = "died (by SIGKILL or for want of memory: it left no trace of anything else)"

_WHOLE_MS: Final = 10


def in_words(alert: Alert) -> str:
    """Return what was noticed, at which step, and by how much."""
    who = f"rank {', '.join(map(str, alert.ranks[:8]))}" if alert.ranks else "the job"
    where = f" on {', '.join(alert.hosts[:4])}" if alert.hosts else ""
    text = {
        "slow_rank": f"{who}{where} is slow" if not alert.over else f"{who} is no longer slow",
        "longer_steps": "the job's steps became longer",
        "stalled": "no step ends any more" if not alert.over else "steps end again",
        "high_slowdown": "uneven ranks slow the sampled steps" if not alert.over else "S is no longer high",
        "rank_died": ("a rank died" if alert.told else f"{who}{where} died")
        if not alert.over
        else f"{who} trains again",
        "silent_host": f"{', '.join(alert.hosts)} is not heard"
        if not alert.over
        else f"{', '.join(alert.hosts)} is back",
    }[alert.kind]
    explanation = f": {alert.told}" if alert.told and not alert.over else ""
    much = longer(alert, ": its") if alert.kind == "slow_rank" else _how_much(alert)
    return f"step {alert.step}: {text}{much}{explanation}"


def longer(alert: Alert, its: str) -> str:
    """Return `: its own time is 12 ms longer (20% of the step)`, which is no price: others may wait for more or less.

    The share of a rank's short own time alone can be any number, so the step's is given.
    """
    if alert.excess is None:
        return ""
    share = f"{alert.excess:.0%}" + (" a sample" if alert.per_sample else "")
    if alert.excess_us is None or alert.excess_of_step is None:
        return f"{its} own time is {share} longer"
    of_sample = f"{share}, " if alert.per_sample else ""
    return f"{its} own time is {_time(alert.excess_us)} longer ({of_sample}{alert.excess_of_step:.0%} of the step)"


def _how_much(alert: Alert) -> str:
    """Return ` by 12 ms (20%)`."""
    if alert.excess is None:
        return ""
    if alert.excess_us is None or alert.kind != "longer_steps":
        return f" by {alert.excess:.0%}"
    return f" by {_time(alert.excess_us)} ({alert.excess:.0%})"


def _time(us: float) -> str:
    ms = us / 1000
    return f"{ms:,.0f} ms" if ms >= _WHOLE_MS else f"{ms:.2g} ms"


def standing_in_words(one: StandingRank) -> str:
    """Return `rank 3 on node-1 died of SIGSEGV in step 41, in forward, at train.py:33 loss_of`."""
    text = f"rank {one.rank}" + (f" on {one.host}" if one.host else "")
    if one.state == "unheard":
        return f"{text} is on a host that does not report"
    if one.state == "untold":
        return f"{text} does not say where it is, in step {one.step}"
    step = f" in step {one.step}" if one.step >= 0 else ""
    at = stuck_at(one)
    where = f"{step}{f', {at}' if at else ''}"
    if one.state == "ended":
        return f"{text} ended in order{step}, before the others"
    if one.state == "died":
        return f"{text} {_end_in_words(one)}{where}"
    return f"{text} is stuck{where}"


def _end_in_words(one: StandingRank) -> str:
    if one.signal:
        why = ", as memory ran out" if one.known_by == "out_of_memory" else ""
        return f"died of {signal_name(one.signal)}{why}"
    if one.error:
        return f"died of {one.error}"
    return _UNKNOWN_END if one.exit_status is None else f"ended with exit status {one.exit_status}"
