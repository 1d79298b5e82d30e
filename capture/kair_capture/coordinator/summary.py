"""Sums up a finished job in a few lines: how far it came, which rank was slow, what was sampled, and more."""

from collections.abc import Collection
from typing import Final

from kair_capture.coordinator.alert_text import longer
from kair_engine.results.watch import Alert, WatchResult

_MOST_NAMED: Final = 4
"""Slow ranks that are named; others are counted."""


def summary_of(status: WatchResult) -> list[str]:
    """Return one to three lines, without line breaks, about the last status of a job that has steps."""
    how = "is over" if status.state == "over" else "ended abnormally"
    attempt = f", attempt {status.attempt}" if status.attempt > 1 else ""
    hosts = f" on {len(status.hosts)} host{'s' if len(status.hosts) > 1 else ''}" if status.hosts else ""
    ranks = f"{status.world_size} rank{'s' if status.world_size > 1 else ''}{hosts}"
    time = "" if status.step_time_us is None else f", {time_of(status.step_time_us)} a step at the end (median of 20)"
    lines = [f"job {status.job} {how}{attempt}: {ranks} came to step {status.step}{time}"]
    if status.hang is not None and not status.hang.over and status.hang.told:
        lines[0] += f"; {status.hang.told}"
    lines.append(_verdict(status))
    windows = [one for one in status.sampling.windows if one.state == "committed"]
    steps = sum(one.last_step - one.first_step + 1 for one in windows)
    sampled, more = (f"{steps} steps were", "watch") if windows else ("nothing was", "steps")
    lines.append(f"{sampled} sampled lately; kair triage {status.job} and kair {more} {status.job} show more")
    return lines


def _verdict(status: WatchResult) -> str:
    """Return triage's sentence and other ranks noticed; without an answer about the end, only these."""
    if (triage := status.triage) is None or triage.step < status.step:
        return _noticed(status, ())
    besides = _noticed(status, [rank for one in triage.slow for rank in one.ranks])
    return f"triage: {triage.summary}" + (f"; {besides}" if " was slow " in besides else "")


def _noticed(status: WatchResult, known: Collection[int]) -> str:
    """Return each rank, except those in `known`, that was noticed as slow, from when to when; the last time counts."""
    began: dict[int, Alert] = {}
    ended: dict[int, int] = {}
    for alert in status.alerts:
        if alert.kind == "slow_rank":
            for rank in (rank for rank in alert.ranks if rank not in known):
                if alert.over:
                    ended[rank] = alert.step
                else:
                    began[rank] = alert
                    ended.pop(rank, None)
    if not began:
        return "no rank was slow, as far as its last 100 alerts show" if status.alerts else "no rank was slow"
    # Ranks that are still slow first, then those that were for longest.
    order = sorted(began, key=lambda rank: (rank in ended, began[rank].step))
    sentences = []
    for rank in order[:_MOST_NAMED]:
        alert = began[rank]
        host = f" on {alert.hosts[0]}" if alert.hosts else ""
        until = f" to step {ended[rank]}" if rank in ended else ""
        sentences.append(f"rank {rank}{host} was slow from step {alert.step}{until or ' on'}{longer(alert, ', its')}")
    more = f"; and {len(order) - _MOST_NAMED} more ranks" if len(order) > _MOST_NAMED else ""
    return "; ".join(sentences) + more


def time_of(us: float) -> str:
    """Return `61.3 ms`, `2.4 s`."""
    return f"{us / 1e6:.3g} s" if us >= 1e6 else f"{us / 1e3:.3g} ms"
