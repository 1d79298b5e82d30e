"""What ranks that are given more samples than their peers take longer is nobody's fault, and no finding.

Who is given how many is what the job itself says (`kair_capture.samples`), not what its tensors or times look like.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FEWEST_STEPS, Anomaly
from kair_engine.localize.change_points import Change
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import Localization
from kair_engine.localize.peers import WIDE_OF_WORK
from kair_engine.ranks import ranks_at
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.warning_kinds import LargerShare, NewSizes
from kair_engine.timeline.batch_sizes import STEPS_OF_A_CHANGE, lasting_changes
from kair_engine.timeline.inputs import samples_of
from kair_engine.trace.model import KairWarning, Trace

_OF_SAMPLES = [CLASSES.index(name) for name in ("compute", "input", "host")]
"""The classes of time that follow what a rank is given."""


@dataclass(frozen=True)
class BatchShare:
    """The samples of slow ranks compared with their peers': how many a step has, and how long one takes."""

    samples: float
    usual: float
    us_per_sample: float
    usual_us_per_sample: float

    @property
    def is_larger(self) -> bool:
        """Whether these ranks are given more than their peers."""
        return self.samples > self.usual


def batch_share(job: JobExcess, samples: Floats | None, slow: Anomaly) -> BatchShare | None:
    """Return the shares of an anomaly's ranks; None if their samples or their peers' are unknown, or are as many.

    `samples`: (steps × ranks), NaN where they were not recorded.
    """
    if samples is None:
        return None
    of = Compared(job, slow)
    places, peers, later = of.mine, of.peers, samples[of.later]
    own, others = later[:, places], later[:, peers]
    if np.isnan(own).all() or np.isnan(others).all():
        return None
    mine, usual = float(np.nanmedian(own)), float(np.nanmedian(others))
    if mine == usual or not min(mine, usual) > 0:
        return None
    spent_us = job.work_ns[_OF_SAMPLES].sum(axis=0) / 1e3
    of_peers = float(np.median(spent_us[peers]))
    return BatchShare(mine, usual, float(spent_us[places].mean()) / mine, of_peers / usual)


def without_larger_shares(found: Localization, samples: Floats | None) -> tuple[Localization, tuple[KairWarning, ...]]:
    """Without those who are slow by no more than what they are given beyond their peers, and who these are."""
    if samples is None:
        return found, ()
    explained = {one: of for one in (*found.anomalies, *found.undecided) if (of := _explained(found.job, samples, one))}
    told = (
        LargerShare(
            samples=of.samples,
            usual_samples=of.usual,
            us_per_sample=of.us_per_sample,
            usual_us_per_sample=of.usual_us_per_sample,
            ranks=ranks_at(found.job.ranks, one.positions),
        )
        for one, of in explained.items()
    )
    left = replace(
        found,
        roles=tuple(one for one in found.roles if not _given_more(samples, one.change, list(one.positions))),
        longer=None if found.longer is not None and _given_more(samples, found.longer.change) else found.longer,
        anomalies=tuple(one for one in found.anomalies if one not in explained),
        undecided=tuple(one for one in found.undecided if one not in explained),
    )
    return left, tuple({one.ranks: one for one in told}.values())


def without_new_sizes(trace: Trace) -> tuple[Trace, tuple[KairWarning, ...]]:
    """Return the trace without the first steps of other numbers of samples than in the steps before, and what is said
    of it.

    All of it where fewer steps would be left than tests need.
    """
    steps = np.array(trace.steps, np.int64)
    samples = samples_of(trace, steps, np.array(trace.job.ranks, np.int64))
    if samples is None:
        return trace, ()
    firsts = [int(steps[at]) for at in lasting_changes(samples) if steps[at - 1] == steps[at] - 1]
    kept = [step for step in trace.steps if not any(0 <= step - first < STEPS_OF_A_CHANGE for first in firsts)]
    if len(kept) == len(trace.steps) or len(kept) < FEWEST_STEPS:
        return trace, ()
    told = NewSizes(step=firsts[0], changes=len(firsts), steps=len(trace.steps) - len(kept))
    return trace.select(kept), (told,)


def _explained(job: JobExcess, samples: Floats, slow: Anomaly) -> BatchShare | None:
    """Return the ranks' shares if these are why they are slow: what they lose beyond that is too little to report."""
    share = batch_share(job, samples, slow)
    if share is None or not share.is_larger or slow.class_index not in _OF_SAMPLES or slow.kind == "intermittent":
        return None
    compared = Compared(job, slow)
    usual_ns = float(np.median(job.work_ns[slow.class_index, compared.peers]))
    larger = share.samples / share.usual
    # Since a step: what it was given before was given before, too.
    before = samples[~compared.later]
    if slow.since is not None and not np.isnan(of := before[:, list(slow.positions)]).all():
        larger -= float(np.nanmedian(of)) / share.usual - 1
    beyond_ns = slow.excess_ns - (larger - 1) * usual_ns
    told = max(SMALLEST_SHARE * job.step_time_ns, WIDE_OF_WORK * usual_ns * share.samples / share.usual)
    return share if beyond_ns <= told else None


def _given_more(samples: Floats, change: Change, places: Sequence[int] | None = None) -> bool:
    """Whether a change is no larger than that of the samples which these ranks, or all, get, and WIDE_OF_WORK."""
    of = samples if places is None else samples[:, places]
    within = change.within(len(of))
    if np.isnan(of[within]).all() or np.isnan(of[~within]).all():
        return False
    larger = float(np.nanmedian(of[within])) / max(float(np.nanmedian(of[~within])), 1e-9)
    return larger > 1 and change.factor <= larger * (1 + WIDE_OF_WORK)
