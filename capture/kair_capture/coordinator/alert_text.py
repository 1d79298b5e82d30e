"""Alerts in words: a line each, for logs and for `kair watch`."""

from kair_engine.results.watch import Alert


def in_words(alert: Alert) -> str:
    """What was noticed, at which step, and by how much."""
    who = f"rank {', '.join(map(str, alert.ranks[:8]))}" if alert.ranks else "the job"
    where = f" on {', '.join(alert.hosts[:4])}" if alert.hosts else ""
    text = {
        "slow_rank": f"{who}{where} is slow" if not alert.over else f"{who} is no longer slow",
        "longer_steps": "the job's steps became longer",
        "stalled": "no step ends any more" if not alert.over else "steps end again",
        "silent_host": f"{', '.join(alert.hosts)} is not heard"
        if not alert.over
        else f"{', '.join(alert.hosts)} is back",
    }[alert.kind]
    by = "" if alert.excess is None else f" by {alert.excess:.0%}"
    return f"step {alert.step}: {text}{by}"
