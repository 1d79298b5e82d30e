"""Stops of threads in words: how often, how long, and whether ranks stand still together."""

from collections.abc import Mapping
from typing import Any, Final

from kair_engine.results.whatif import LackOfCores
from kair_tui.render.units import duration, one_decimal, percent

TOGETHER: Final = 1.5
"""Ranks stop together if stops independent across ranks would cover this many times more of the host's time."""


def ticks_in_words(tick_us: float, share: float) -> str:
    """What waits for the scheduler's ticks, and its share of the step."""
    return (
        f"whatever they compute, operations end with the scheduler's ticks; what is as long as a tick "
        f"({duration(tick_us)}) or longer is {percent(share)} of the mean rank's step"
    )


def cores_in_words(figures: Mapping[str, float]) -> str:
    """How long threads were ready without a core: of the mean rank, and from which to which."""
    ready, step = duration(figures["ready_us_per_step"]), duration(figures["step_us"])
    least, most = duration(figures["least_us"]), duration(figures["most_us"])
    return f"the mean rank was ready and had no core for {ready} of each step of {step} ({least} to {most})"


def lack_of_cores_in_words(cores: LackOfCores, step_us: float) -> str:
    """What was measured of all ranks."""
    ready = cores.ready_by_rank_us.values()
    mean = sum(ready) / len(ready)
    said = cores_in_words(
        {"ready_us_per_step": mean, "step_us": step_us, "least_us": min(ready), "most_us": max(ready)}
    )
    helped = list(cores.helpers_by_rank_us.values())
    helpers = [f"other threads of its process computed {duration(sum(helped) / len(helped))}"] if any(helped) else []
    throttled = [throttled_in_words(cores.throttled)] if cores.throttled else []
    halted = [halted_in_words(cores.halted)] if cores.halted else []
    return "; ".join([said, *helpers, *throttled, *halted])


def throttled_in_words(per_step: float) -> str:
    """How often a quota of CPU time stopped the mean rank."""
    return f"a quota of CPU time stopped the mean rank's process {one_decimal(per_step)} times a step"


def halted_in_words(per_step: float) -> str:
    """How often signals stopped the mean rank."""
    return f"signals (SIGSTOP) stopped the mean rank's process {one_decimal(per_step)} times a step"


def stops_in_words(figures: Mapping[str, Any]) -> str:
    """`32.0 times a step (half of them longer than 13.2 ms, …), 77.5 % of the step, …`, of the figures of HostStops."""
    when = "each rank at moments of its own, as when cores are shared"
    if figures["together"] > TOGETHER:
        when = "ranks of a host together, as under one quota"
    return (
        f"{one_decimal(figures['per_step'])} times a step (half of them longer than {duration(figures['median_us'])}, "
        f"the longest {duration(figures['longest_us'])}), {percent(figures['share_of_step'])} of the step, on the rank "
        f"that stands still longest {duration(figures['slowest_rank_us'])}; {when}"
    )
