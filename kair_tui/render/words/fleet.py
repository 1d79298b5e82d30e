"""A fleet in words: the answer in one sentence."""

from kair_engine.results.runs.fleet import FleetJob, FleetResult
from kair_engine.whatif.verdict import SLOW
from kair_tui.render.units import count, money, one_decimal, percent, plural, ranks_in_words, ratio, whole_percent


def fleet_headline(result: FleetResult) -> str:
    """How often stragglers occur, and what they cost."""
    if not result.jobs:
        return f"no job of the store {result.store} could be priced"
    told = f"{result.with_straggler} of {plural(len(result.jobs), 'job')} with a straggler"
    if result.waste is None:
        return f"{told}; none can be replayed"
    price = "" if result.cost_per_day is None else f", {money(result.cost_per_day)}"
    return (
        f"{told}, {count(result.slow)} slowed by {whole_percent(SLOW - 1)} or more; {percent(result.waste)} of all GPU "
        f"time is waste: {one_decimal(result.gpu_hours_per_day)} GPU-hours{price} a day"
    )


def spread_in_words(result: FleetResult) -> str:
    """The distribution of S in three figures."""
    if result.median_slowdown is None or result.slowdown_90 is None or result.worst_slowdown is None:
        return "S is known of no job"
    half, most, worst = map(ratio, (result.median_slowdown, result.slowdown_90, result.worst_slowdown))
    return (
        f"S of {plural(result.replayed, 'job')}: half of them {half} or less, nine of ten {most} or less, worst {worst}"
    )


def who_is_accused(job: FleetJob) -> str:
    """The job's culprits; a dash where there is none."""
    if not job.accused_ranks:
        return "–"
    hosts = f" on {', '.join(job.accused_hosts[:3])}" if job.accused_hosts else ""
    more = f" and {count(len(job.accused_hosts) - 3)} more" if len(job.accused_hosts) > 3 else ""
    return f"{ranks_in_words(job.accused_ranks)}{hosts}{more}"
