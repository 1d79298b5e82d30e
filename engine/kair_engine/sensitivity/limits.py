"""What keeps smaller faults from being found, in words that say what would help."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kair_engine.localize.anomalies import FEWEST_STEPS, SMALLEST_SHARE
from kair_engine.localize.excess import KEPT_SHARE
from kair_engine.localize.links import FEWEST_SIBLINGS, SLOWER_BY
from kair_engine.results.sensitivity import DetectionLimit, InjectedFault, LongerRecording
from kair_engine.sensitivity.detection import Detection
from kair_engine.triage.advice import duration

MISSING: Mapping[InjectedFault, str] = MappingProxyType(
    {
        "slow_device": "the recording has no compute operations",
        "slow_operator": (
            f"no compute operator in which ranks differ by {KEPT_SHARE:.1%} of a step: there is none to try it on"
        ),
        "slow_input": "the recording has no input fetches",
        "slow_link": f"no process group or pipeline edge has {FEWEST_SIBLINGS - 1} siblings with the same transfers",
    }
)
"""Why a fault cannot be put in."""
_HELPS, _NEAR, _WORTH = 0.9, 1.3, 1.1
"""More steps help where they take the smallest fault down by the first factor; what is so near the least that is
reported is limited by that; what comes so near to what ten times the steps show is long enough."""


def too_few(ranks: int, steps: int) -> str | None:
    """Why nothing can be said at all; None where there is enough."""
    if ranks == 1:
        return "one rank only: there is no peer to compare it with"
    if steps < FEWEST_STEPS:
        return (
            f"{steps} step{'' if steps == 1 else 's'}: a slow rank cannot be told from a slow moment; "
            f"record at least {FEWEST_STEPS}, better 10"
        )
    return None


def limit_of(detection: Detection, now: LongerRecording, longer: Sequence[LongerRecording]) -> DetectionLimit:
    """What would have to change for a smaller fault to be found."""
    cost, longest = now.smallest_us_per_step, longer[-1].smallest_us_per_step
    if longest is not None and (cost is None or longest < _HELPS * cost):
        return "steps"
    if cost is not None and cost < _NEAR * detection.least_ns / 1e3:
        return "smallest_share"
    return "peers" if detection.peers < 2 else "ranks"


def reason_of(
    detection: Detection,
    limit: DetectionLimit,
    now: LongerRecording,
    longer: Sequence[LongerRecording],
    *,
    step_ns: float,
) -> str:
    """The limit as a sentence."""
    if limit == "steps":
        return _more_steps(now, longer)
    if limit == "smallest_share":
        at_least = f"{SLOWER_BY:.0%} of its own time and " if detection.fault == "slow_link" else ""
        return f"found almost as soon as it is reported at all, from {at_least}{SMALLEST_SHARE:.0%} of the step on"
    if limit == "peers":
        if not detection.peers:
            return "most ranks are alone in their role: there is no peer to compare them with"
        return "one peer only, which could as well be the fast one: more ranks of the same role would help"
    return _too_different(detection, now, step_ns)


def _too_different(detection: Detection, now: LongerRecording, step_ns: float) -> str:
    what, spread = "links" if detection.fault == "slow_link" else "ranks", detection.spread_ns
    if now.smallest_us_per_step is None:
        return f"found at no size: the {what} differ too much already, or are too few"
    if not spread:
        return (
            f"more steps do not help, more {what} would: how much {detection.peers + 1} healthy ones differ "
            "is little known"
        )
    return (
        f"more steps do not help: the {what} differ for good, by {duration(spread / 1e3)} a step "
        f"({spread / step_ns:.2%}, standard deviation)"
    )


def _more_steps(now: LongerRecording, longer: Sequence[LongerRecording]) -> str:
    found = [one for one in longer if one.smallest_us_per_step is not None]
    best = found[-1].smallest_us_per_step or 0.0
    enough = next(one for one in found if (one.smallest_us_per_step or 0.0) <= _WORTH * best)
    record = f"record {enough.steps} steps instead of {now.steps}, and"
    if enough.stalled_steps is not None:
        stalls = f"{enough.stalled_steps} stalled ones ({enough.stalled_steps / enough.steps:.0%}) are found"
        before = "" if now.stalled_steps is None else f", now {now.stalled_steps} ({now.stalled_steps / now.steps:.0%})"
        return f"{record} {stalls}{before}"
    return f"{record} {enough.smallest_share_of_step or 0.0:.1%} of the step is found"
