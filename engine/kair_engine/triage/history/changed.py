"""Finds steps that became longer on all ranks alike, which no comparison of ranks shows."""

from collections.abc import Sequence

import numpy as np

from kair_engine.results.triage import Finding, OpenItem
from kair_engine.steplog.analysis import changes_of
from kair_engine.triage.history.rows import StepHistory
from kair_engine.triage.open_items import EXPLAINED


def longer_steps(history: StepHistory, findings: Sequence[Finding]) -> tuple[OpenItem, ...]:
    """Return that steps became longer for good, by the tests of logs, unless findings explain half of that.

    A job whose batches were resized takes other steps on purpose.
    """
    if history.resized or not len(history.steps):
        return ()
    changes = changes_of(history.steps, np.median(history.us["step"], axis=1) / 1e6)
    lasting = [one for one in changes if one.kind in ("slower", "drift") and one.until is None and one.share > 0]
    known = sum(one.time_lost_us_per_step for one in findings if one.since is not None or one.pattern == "job_wide")
    for one in lasting[-1:]:
        steps = history.steps[history.steps >= one.since]
        lost_us = (one.extra_us_per_step or 0.0) * len(steps) / len(history.steps)
        if known < EXPLAINED * lost_us:
            usual_us = one.usual_us or 0.0
            share = lost_us / history.step_us
            took_us = usual_us * (1 + one.share)
            return (OpenItem("changed", (), tuple(steps.tolist()), lost_us, share, took_us=took_us, usual_us=usual_us),)
    return ()
