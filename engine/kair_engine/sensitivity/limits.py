"""Limits of detection: what keeps smaller faults from being found."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kair_engine.localize.anomalies import FEWEST_STEPS, SMALLEST_SHARE
from kair_engine.localize.excess import KEPT_SHARE
from kair_engine.localize.links import FEWEST_SIBLINGS, SLOWER_BY
from kair_engine.results.sensitivity import DetectionLimit, InjectedFault, LongerRecording, Reason
from kair_engine.sensitivity.detection import Detection

MISSING: Mapping[InjectedFault, Reason] = MappingProxyType(
    {
        "slow_device": Reason("no_compute"),
        "slow_operator": Reason("no_operator", {"differing_share_of_step": KEPT_SHARE}),
        "slow_input": Reason("no_input"),
        "slow_link": Reason("no_siblings", {"siblings": FEWEST_SIBLINGS - 1}),
    }
)
"""Why a fault cannot be put in."""
_HELPS, _NEAR, _WORTH = 0.9, 1.3, 1.1
"""More steps help where they take the smallest fault down by the first factor; what is so near the least that is
reported is limited by that; what comes so near to what ten times the steps show is long enough."""


def too_few(ranks: int, steps: int) -> Reason | None:
    """Why nothing can be said at all; None where there is enough."""
    if ranks == 1:
        return Reason("one_rank")
    return Reason("few_steps", {"steps": steps, "fewest_steps": FEWEST_STEPS}) if steps < FEWEST_STEPS else None


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
) -> Reason:
    """The limit with its figures; `step_ns` is the step's time."""
    if limit == "steps":
        return Reason("more_steps", _enough(now, longer))
    if limit == "smallest_share":
        of_link = {"share_of_self_time": SLOWER_BY} if detection.fault == "slow_link" else {}
        return Reason("smallest_reported", {"share_of_step": SMALLEST_SHARE, **of_link})
    if limit == "peers":
        return Reason("one_peer" if detection.peers else "no_peer")
    if now.smallest_us_per_step is None:
        return Reason("too_different")
    if not detection.spread_ns:
        return Reason("spread_unknown", {"healthy": detection.peers + 1})
    return Reason("spread", {"spread_us": detection.spread_ns / 1e3, "share_of_step": detection.spread_ns / step_ns})


def _enough(now: LongerRecording, longer: Sequence[LongerRecording]) -> dict[str, float]:
    """The shortest longer recording that shows about as much as the longest."""
    found = [one for one in longer if one.smallest_us_per_step is not None]
    best = found[-1].smallest_us_per_step or 0.0
    enough = next(one for one in found if (one.smallest_us_per_step or 0.0) <= _WORTH * best)
    figures: dict[str, float] = {"steps": enough.steps, "recorded_steps": now.steps}
    if enough.stalled_steps is None:
        return {**figures, "share_of_step": enough.smallest_share_of_step or 0.0}
    recorded = {} if now.stalled_steps is None else {"recorded_stalled_steps": now.stalled_steps}
    return {**figures, "stalled_steps": enough.stalled_steps, **recorded}
