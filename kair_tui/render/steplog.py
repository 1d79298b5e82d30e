"""A job's log of steps in words: the answer in one sentence, findings, and what to record next."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kair_engine.results.steplog import LogAttempt, LogChange, LogOfSteps, LogPeriod, LogRank, LogSpike, NextRecording
from kair_tui.render.units import count, duration, p_value, percent, plural, significant

_FEW_HOURS: Final = 0.005
_SPIKES_NAMED: Final = 3
_NAMES_NOBODY: Final = "all ranks wait for the slowest, so the log names no rank"


def log_in_words(log: LogOfSteps) -> LogOfSteps:
    """Return the log with its sentences."""
    return replace(
        log,
        changes=tuple(replace(one, sentence=_change(one, log)) for one in log.changes),
        periods=tuple(replace(one, sentence=_period(one)) for one in log.periods),
        ranks=tuple(replace(one, sentence=_rank(one)) for one in log.ranks),
        next=replace(log.next, sentence=_next(log.next, log)),
    )


def log_summary(log: LogOfSteps) -> str:
    """Return the answer in one sentence."""
    if log.ranks:
        more = f" (and {plural(len(log.ranks) - 1, 'other rank')})" if len(log.ranks) > 1 else ""
        return f"straggler: {_rank(log.ranks[0])}{more}"
    if not log.attempts or not any(one.noise > 0 for one in log.attempts):
        lines = sum(one.lines for one in log.attempts)
        return f"inconclusive: the log has {plural(lines, 'step')} with a time, too few to compare"
    number = log.attempts[-1].number
    changes = [one for one in log.changes if one.share > 0]
    lasting = next((one for one in changes if one.until is None and one.attempt == number), None)
    chosen = lasting or next(iter(changes), None)
    period = next(iter(log.periods), None)
    if chosen is not None and (period is None or lasting is not None or _costs_more(chosen, period, log)):
        return f"inconclusive: {_briefly(chosen)}; {_NAMES_NOBODY}"
    if period is not None:
        extra = "" if period.extra_us is None else f" {duration(period.extra_us)} longer"
        often = f"one step in {count(period.every)} takes{extra or ' longer'}, {percent(period.share)} of the time"
        return f"inconclusive: {often}; {_NAMES_NOBODY}"
    last = log.attempts[-1]
    of = "" if last.step_us is None else f" of {duration(last.step_us)}"
    unchanged = f"{plural(last.lines, 'step')}{of} without a change of {percent(log.smallest_share)} or more"
    return f"inconclusive: {unchanged}; a rank that was slow from the start does not show in a log"


def _costs_more(change: LogChange, period: LogPeriod, log: LogOfSteps) -> bool:
    steps = next(one.last_step - one.first_step + 1 for one in log.attempts if one.number == change.attempt)
    return change.share * change.steps / max(steps, 1) >= period.share


def log_lines(log: LogOfSteps | None, *, names_ranks: bool = True) -> list[str]:
    """Return the findings, the costliest first, and what to record next; without ranks that findings name."""
    if log is None:
        return []
    worded = log_in_words(log)
    ranks = worded.ranks if names_ranks else ()
    found: list[LogRank | LogChange | LogPeriod] = [*ranks, *worded.changes, *worded.periods]
    lines = [f"log: {one.sentence}" for one in found]
    lines += [f"log: {text}" for text in _others(worded)]
    lines.append(f"next: {worded.next.sentence}")
    return lines + [f"  {command}" for command in worded.next.commands]


def _others(log: LogOfSteps) -> Iterator[str]:
    if log.spikes_in_all:
        named = ", ".join(f"{count(one.step)} ({_longer(one)})" for one in log.spikes[:_SPIKES_NAMED])
        more = ", …" if log.spikes_in_all > _SPIKES_NAMED else ""
        yield f"{plural(log.spikes_in_all, 'single step')} took longer: {named}{more}"
    if log.ranks_printed and not log.ranks:
        yield f"{plural(log.ranks_printed, 'rank')} print their own lines, and none of them differs"
    if log.skipped:
        yield f"{plural(log.skipped, 'step')} that loss scaling skipped left out"
    if log.by_work:
        yield "times are compared as if all steps had as many samples or tokens"
    if len(log.attempts) > 1:
        yield f"{plural(len(log.attempts), 'attempt')}, each judged by itself: {_listed(log)}"


_ATTEMPTS_NAMED: Final = 4


def _listed(log: LogOfSteps) -> str:
    def of(one: LogAttempt) -> str:
        took = "" if one.step_us is None else f", {duration(one.step_us)} a step"
        return f"{count(one.first_step)} to {count(one.last_step)}{took}"

    named = "; ".join(of(one) for one in log.attempts[-_ATTEMPTS_NAMED:])
    return named if len(log.attempts) <= _ATTEMPTS_NAMED else f"the last ones {named}"


def log_totals(log: LogOfSteps) -> str:
    """Return what was examined."""
    if not log.attempts:
        return f"log of {log.format}: no step has a time"
    last = log.attempts[-1]
    step = "steps in no unit" if last.step_us is None else f"step {duration(last.step_us)}"
    every = "" if last.steps_per_line == 1 else f" (one line for {count(last.steps_per_line)})"
    ranks = "" if log.world_size is None else f", {plural(log.world_size, 'rank')}"
    warm = f"; {plural(last.warm_up_steps, 'step')} of warm-up left out" if last.warm_up_steps else ""
    steps = f"{plural(last.lines, 'step')}{every} from {count(last.first_step)} to {count(last.last_step)}"
    return f"{step}, varies by {percent(last.noise)}; {steps} in a log of {log.format}{ranks}{warm}"


def _longer(one: LogSpike) -> str:
    return f"+{percent(one.share, 0)}" if one.extra_us is None else f"+{duration(one.extra_us)}"


def _briefly(one: LogChange) -> str:
    when = f"since step {count(one.since)}"
    if one.until is not None:
        when = f"from step {count(one.since)} to {count(one.until)}"
    extra = "" if one.extra_us_per_step is None else f"+{duration(one.extra_us_per_step)}, "
    verb = "take" if one.until is None else "took"
    how = "longer and longer, on average" if one.kind == "drift" else "longer"
    return f"steps {verb} {percent(abs(one.share))} {how} {when} ({extra}p {p_value(one.p_value)})"


def _change(one: LogChange, log: LogOfSteps) -> str:
    attempt = f"attempt {one.attempt}: " if len(log.attempts) > 1 else ""
    if one.share < 0:
        text = f"steps are {percent(-one.share)} faster since step {count(one.since)} (p {p_value(one.p_value)})"
        return f"{attempt}{text}" if one.kind == "faster" else f"{attempt}{text}, little by little"
    usual = "" if one.usual_us is None else f", compared with {duration(one.usual_us)}"
    parts = [f"{_briefly(one)}{usual}", *_costs(one.gpu_hours)]
    if one.kind == "slow_start":
        parts.append("a slow start, or a fault that ended")
    elif one.kind != "drift":
        parts.append(f"began at {_range(one.since_range)}")
    if one.until_range is not None:
        parts.append(f"ended at {_range(one.until_range)}")
    if one.phase is not None:
        parts.append(f"most of it in {one.phase}")
    if one.independent_only:
        parts.append("p holds if steps are independent of each other: the log is short")
    return f"{attempt}{'; '.join(parts)}"


def _range(steps: tuple[int, int]) -> str:
    first, last = steps
    return f"step {count(first)}" if first == last else f"step {count(first)} to {count(last)}"


def _costs(hours: float | None) -> list[str]:
    return [] if hours is None or hours < _FEW_HOURS else [f"{significant(hours)} GPU-hours"]


def _period(one: LogPeriod) -> str:
    extra = "" if one.extra_us is None else f" {duration(one.extra_us)}"
    mean = "" if one.extra_us_per_step is None else f" ({duration(one.extra_us_per_step)} a step on average)"
    parts = [
        f"one step in {count(one.every)} takes{extra} longer, {percent(one.share)} of the time{mean}",
        *_costs(one.gpu_hours),
        f"first at step {count(one.first)}, in {one.shown} of {one.repeats} repeats, p {p_value(one.p_value)}",
        "evaluation, a checkpoint, or a loader that falls behind",
    ]
    return "; ".join(parts)


_AGAINST: Final = {
    "past": "since step {since}, compared with its peers and its own past",
    "peers": "all the time, compared with its peers",
    "place": "in the steps of the period, compared with the steps between",
    "moment": "in the slow steps, compared with the others",
}


def _rank(one: LogRank) -> str:
    share = "" if one.share_of_change is None else f", {percent(one.share_of_change, 0)} of what steps take longer"
    chance = f"p {p_value(one.p_value)}"
    longer = f"rank {one.rank} takes {duration(one.excess_us)} longer in {one.phase}"
    return f"{longer} {_AGAINST[one.contrast].format(since=count(one.since or 0))}{share} ({chance})"


_WHY: Final = {
    "standing": "it persists: record {ranks} for {steps} steps",
    "period": "record {ranks} in the next {steps} slow steps, each with the step before it",
    "ended": "it is over: record {ranks} for {steps} steps once three steps in a row take more than {trigger}",
    "spikes": "slow steps come one by one: run the job under capture, which samples when a step is slow",
    "means": "a line is a mean of several steps: log every step, and ask again",
    "nothing": "nothing stands out, which is not the same as no straggler: {steps} recorded steps of {ranks} would "
    "name a rank that is 5 % slower",
}


def _next(one: NextRecording, log: LogOfSteps) -> str:
    who = "each rank"
    if one.ranks and log.world_size and one.ranks < log.world_size:
        who = f"one rank of each node, then all of the late node ({count(one.ranks)} recordings)"
    elif one.ranks:
        who = f"all {plural(one.ranks, 'rank')}"
    trigger = "" if one.trigger_us is None else duration(one.trigger_us)
    text = _WHY[one.reason].format(steps=one.steps, ranks=who, trigger=trigger or "usual")
    cost = "" if one.gpu_hours is None else f", at most {significant(one.gpu_hours)} GPU-hours"
    if one.is_below_floor and one.reason in ("standing", "period", "ended"):
        small = "the change is small: if that names no rank, more steps will not either (kair probe compares machines)"
        return f"{text}{cost}; {small}"
    return f"{text}{cost if one.reason != 'means' else ''}"
