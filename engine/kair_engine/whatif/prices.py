"""Prices fixes: from step times to throughput, GPU hours and money."""

from collections.abc import Sequence
from typing import Final

from kair_engine.arrays import Floats
from kair_engine.errors import UsageError
from kair_engine.results.fix import Fix
from kair_engine.results.whatif import FixPrice
from kair_engine.whatif.fixes import fix_text

HOURS_PER_DAY = 24.0


def each_and_all(fixes: Sequence[Fix]) -> list[tuple[Fix, ...]]:
    """Each fix by itself, and where there are several all together."""
    return [*((fix,) for fix in fixes), *([tuple(fixes)] if len(fixes) > 1 else [])]


def fix_prices(
    fixes: Sequence[Fix], before_ns: float, steps_ns: Sequence[Floats], *, devices: int, gpu_cost: float | None
) -> tuple[FixPrice, ...]:
    """The prices of `each_and_all` of the fixes, given each one's step times."""
    texts = [*map(fix_text, fixes), *(["all together"] if len(fixes) > 1 else [])]
    return tuple(
        price(text, before_ns, float(steps.mean()), devices=devices, gpu_cost=gpu_cost)
        for text, steps in zip(texts, steps_ns, strict=True)
    )


def price(text: str, before_ns: float, after_ns: float, *, devices: int, gpu_cost: float | None) -> FixPrice:
    """From step times to what one pays for: a job that runs all day saves that share of its devices' hours."""
    share = 1 - after_ns / before_ns if before_ns else 0.0
    hours = share * devices * HOURS_PER_DAY
    return FixPrice(
        fix=text,
        step_time_us=after_ns / 1e3,
        saved_us=(before_ns - after_ns) / 1e3,
        saved_share=share,
        throughput_gain=before_ns / after_ns - 1 if after_ns else 0.0,
        gpu_hours_per_day=hours,
        cost_per_day=None if gpu_cost is None else hours * gpu_cost,
    )


HIGHEST_COST: Final = 1e12
"""Of a GPU hour: what a year of many costs is a number still."""


def require_cost(gpu_cost: float | None) -> None:
    """Raises UsageError for what is no cost of a GPU hour."""
    if gpu_cost is not None and not 0 <= gpu_cost <= HIGHEST_COST:
        raise UsageError(f"the price of a GPU hour must be from 0 to {HIGHEST_COST:,.0f}, got {gpu_cost:g}")


def nothing_fits(fix: Fix, hint: str | None = None) -> UsageError:
    """The error for a fix that changes no operation."""
    return UsageError(f"nothing in the chosen steps fits {fix_text(fix)}", hint)
