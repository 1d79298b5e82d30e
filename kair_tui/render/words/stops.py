"""Stops of threads in words: how often, how long, and whether ranks stand still together."""

from collections.abc import Mapping
from typing import Any, Final

from kair_tui.render.units import duration, one_decimal, percent

TOGETHER: Final = 1.5
"""Stops at moments of each rank's own would take so many times the time of a host that stops of ranks together take."""


def ticks_in_words(tick_us: float, share: float) -> str:
    """What waits for the scheduler's ticks, and its share of the step."""
    return (
        f"whatever they compute, operations end with the scheduler's ticks; what is as long as a tick "
        f"({duration(tick_us)}) or longer is {percent(share)} of the mean rank's step"
    )


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
