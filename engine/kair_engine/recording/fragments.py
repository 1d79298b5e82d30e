"""The parsed files of a recording, and which of them belong together.

When recordings were made, by their own clocks: spans of a begin and an end, in ns.

Recordings of calls of several kinds beside each other: each rank is told by the best one, and by no two.

One run at a time: a folder that holds several of them lists them, and none is picked.

Recordings that do not belong together: files of another run among those of a job, and which of them is the job's.

What tells is what they share: collectives of which no offset of clocks makes those of one run. Neither the hosts' names
nor the clocks do: containers are all called `localhost`, and a rank whose clock is a day off belongs all the same.
"""

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.paths import MAX_RANKS, rank_from_name
from kair_engine.trace.calls import ONE_QUERY
from kair_engine.trace.model import (
    MAX_MESSAGE_LENGTH,
    FragmentInfo,
    KairWarning,
    ProcessGroup,
    StepTimes,
    Trace,
    listed,
    short_warning,
)

if TYPE_CHECKING:
    from kair_engine.recording.alignment import Pair


@dataclass(frozen=True)
class Fragment:
    """A fragment and what it holds."""

    path: Path
    info: FragmentInfo


Span = tuple[int, int]


def span_of(times: StepTimes) -> Span:
    """From the first begin of a step to the last end; (0, 0) without steps."""
    ends = (begin + length for begin, length in zip(times.begin_ns, times.duration_ns, strict=True))
    return min(times.begin_ns, default=0), max(ends, default=0)


def overlap(one: Span, other: Span) -> bool:
    """Whether there is a time that is in both."""
    return max(one[0], other[0]) < min(one[1], other[1])


def at_one_time(spans: Sequence[Span]) -> list[int]:
    """Per span a number, equal for those that overlap, directly or by way of others."""
    found, number, until = [0] * len(spans), -1, 0
    for at in sorted(range(len(spans)), key=lambda at: spans[at]):
        begin, end = spans[at]
        if number < 0 or begin >= until:
            number, until = number + 1, end
        found[at], until = number, max(until, end)
    return found


_DUMPS: Final = "flight_recorder"
_LOG: Final = "job_log"
BESIDE: Final = (_LOG, "ras")
"""Formats that are read for want of a recording: beside a job's traces or dumps they are no other job."""


def damaged_dumps(fragments: Sequence[Fragment], lost: Mapping[Path, int | None]) -> dict[Path, KairWarning]:
    """Of files that are `lost`, which are dumps, and of which rank: nothing is told of it.

    Whoever left a damaged dump is not one who left none: its warning has the rank. Files are taken for dumps whose name
    is that of a dump beside them but for its numbers.
    """
    dumps = {_without_numbers(Path(one.info.source)) for one in fragments if one.info.format == _DUMPS}
    found = {}
    for path, hint in lost.items():
        rank = rank_from_name(path) if hint is None else hint
        if rank is not None and rank < MAX_RANKS and _without_numbers(path) in dumps:
            text = f"{path.name} is cut off or damaged: it is unknown how far rank {rank} came"
            found[path] = short_warning("unreadable_file", text, (rank,))
    return found


def _without_numbers(path: Path) -> str:
    return str(path.parent / re.sub(r"\d+", "#", path.name))


def with_calls_once(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[KairWarning]]:
    """Return the fragments without logs and answers of RAS where there is something better.

    Beside dumps a log tells the ranks that left none; answers of RAS are left out beside logs, as are both beside
    traces. A rank of several logs is told by the one that tells most of its groups.
    """
    best = [one for one in fragments if one.info.format not in BESIDE]
    logs = [one for one in fragments if one.info.format == _LOG]
    if best and any(one.info.format != _DUMPS for one in best):
        return best, []
    kept = [*best] if best or logs else _newest_answer(fragments)
    told = {rank for one in kept for rank in one.info.ranks if rank in one.info.calls}
    lacking: set[int] = set()
    said = [one for log in logs for one in log.info.said]
    for log in sorted(logs, key=lambda one: (-sum(map(len, one.info.calls.values())), one.info.source)):
        calls = {rank: of for rank, of in log.info.calls.items() if rank not in told and (of or not told)}
        if calls:
            info = replace(log.info, ranks=tuple(calls) if best else log.info.ranks, calls=calls, said=())
            # Beside dumps it is one of them: what its job's size and format are is theirs to say.
            kept.append(Fragment(log.path, replace(info, format=_DUMPS, world_size=None) if best else info))
            told |= {*calls}
            lacking |= {*calls}
    if said and kept:
        kept[0] = replace(kept[0], info=replace(kept[0].info, said=tuple(said)))
    warnings = []
    if best and lacking:
        of_log = f"those of rank {listed(sorted(lacking))} by the log"
        text = f"the calls are taken from {len(best)} Flight Recorder dumps, {of_log}"
        warnings.append(short_warning("calls_from_log", text))
    if len(fragments) > len(best) + len(logs) and (best or logs):
        text = f"the calls are taken from {'dumps' if best else 'the log'}; what NCCL's RAS says of them is left out"
        warnings.append(short_warning("calls_from_log", text))
    return kept, warnings


def _newest_answer(answers: Sequence[Fragment]) -> list[Fragment]:
    """Return the last answer of NCCL's RAS; with an earlier one that says the same it tells a hang from a job that
    runs.
    """
    if len(answers) < 2:
        return [*answers]
    *earlier, newest = sorted(answers, key=lambda one: (one.info.asked_at, one.info.source))
    apart = [one for one in earlier if one.info.asked_at < newest.info.asked_at or not newest.info.asked_at]
    still = any(one.info.calls == newest.info.calls for one in apart)
    info = newest.info
    if still:
        info = replace(info, warnings=tuple(one for one in info.warnings if one.code != ONE_QUERY))
    return [Fragment(newest.path, info)]


_LISTED = 8
_SEVERAL = 2
"""Ranks: of a single one's two recordings the fuller one is taken."""


def require_one_run(sources: Sequence[Path], fragments: Sequence[Fragment]) -> None:
    """Raise InputError where the files below `sources`, which are named as one job, are of several runs.

    Files in one folder are of one run, unless all of it is there twice, as are folders that hold other ranks (a folder
    each) or other steps of it. Of the what-if format every file is a run. Two that record the same step of a rank, or
    worlds of different sizes, are not one.
    """
    of_run: dict[Path, list[Fragment]] = {}
    source, which = (sources[0], f"{sources[0]} holds") if len(sources) == 1 else (Path(), "the named files hold")
    fragments = [one for one in fragments if one.info.format not in BESIDE] or fragments
    for fragment in fragments:
        path = Path(fragment.info.source)
        of_run.setdefault(path if fragment.info.format == "whatif" else path.parent, []).append(fragment)
    if len(of_run) == 1:
        _require_one_time(which, fragments)
    if len(of_run) < 2 or not any(_differ(*pair) for pair in combinations(of_run.values(), 2)):
        return
    names = [f"{_relative(path, source)} (ranks {_ranks(some)})" for path, some in sorted(of_run.items())]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    hint = f"name one of them: {source / _relative(min(of_run), source)}"
    if len(sources) == len(of_run) == 2:
        hint = f"name one of them, or compare them: kair compare {shlex.join(map(str, sources))}"
    raise InputError(f"{which} {len(names)} runs: {', '.join(names[:_LISTED])}{more}", hint)


def _require_one_time(which: str, fragments: Sequence[Fragment]) -> None:
    """Raise InputError where as many ranks recorded the same steps at one time as at another, two ranks at least.

    Fewer are files that were left from another run: most tell which one the folder is of.
    """
    if not all(one.info.absolute_time and one.info.rank_known for one in fragments):
        return
    of_time: dict[int, list[Fragment]] = {}
    spans = [span_of(one.info.step_times) for one in fragments]
    for number, fragment in sorted(zip(at_one_time(spans), fragments, strict=True), key=lambda one: one[0]):
        of_time.setdefault(number, []).append(fragment)
    for one, other in combinations(of_time.values(), 2):
        ranks, of_other = ({rank for fragment in some for rank in fragment.info.ranks} for some in (one, other))
        if len(ranks) == len(of_other) >= _SEVERAL and _cells(one) & _cells(other):
            runs = " and ".join(f"ranks {_ranks(some)} of {_when(some)}" for some in (one, other))
            name = " ".join(Path(other[0].info.source).name.split())[:MAX_MESSAGE_LENGTH]
            hint = f"move one of them into a folder of its own: {name} is of the later one"
            raise InputError(f"{which} 2 runs, which recorded the same steps: {runs}", hint)


def _when(some: Sequence[Fragment]) -> str:
    begin, _ = min(span_of(one.info.step_times) for one in some)
    return f"{datetime.fromtimestamp(begin // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _differ(one: Sequence[Fragment], other: Sequence[Fragment]) -> bool:
    worlds = {fragment.info.world_size for fragment in (*one, *other)} - {None}
    formats = {fragment.info.format for fragment in (*one, *other)}
    return len(worlds) > 1 or len(formats) > 1 or bool(_cells(one) & _cells(other)) or _again(one, other)


def _again(one: Sequence[Fragment], other: Sequence[Fragment]) -> bool:
    """Whether one host wrote two of XLA's profiles at times that do not touch: sessions, a folder each."""
    infos = [fragment.info for fragment in (*one, *other)]
    if any(info.format != "xplane" or info.rank_known or not info.absolute_time for info in infos):
        return False
    hosts = [{host for fragment in some for host in fragment.info.hosts.values()} for some in (one, other)]
    spans = [
        span_of(StepTimes.of_rows(row for one in some for row in one.info.step_times.rows())) for some in (one, other)
    ]
    return bool(hosts[0] & hosts[1]) and not overlap(*spans)


def _cells(some: Sequence[Fragment]) -> set[tuple[int, int]]:
    """Return the (rank, step) that are recorded.

    Files that do not say their rank get one by their order, another each.
    """
    known = [fragment.info.step_times for fragment in some if fragment.info.rank_known]
    return {cell for times in known for cell in zip(times.rank, times.step, strict=True)}


def _ranks(some: Sequence[Fragment]) -> str:
    return listed([rank for fragment in some for rank in fragment.info.ranks])


def _relative(path: Path, source: Path) -> str:
    """As one types it after the folder's name, on one line of bounded length."""
    name = str(path.relative_to(source)) if path.is_relative_to(source) else str(path)
    return " ".join(name.split())[:MAX_MESSAGE_LENGTH]


_APART: Final = 0.01
"""Of the step: ranks whose steps end as evenly apart as that are not looked at. If they are of two runs, these are so
much alike that it changes no price."""
_FAR_APART: Final = 0.1
"""The same where much would have to be read: in no run at hand ranks were more than 0.04 apart."""
_FEWEST_STEPS: Final = 3
"""In fewer any two ranks' end about evenly apart."""
_FEW_STEPS, _MOST_STEPS = 8, 32
"""Looked at, evenly: the few where a step is large."""
_MOST_READ: Final = 8_000_000
"""Operations."""


@dataclass(frozen=True)
class Sorted:
    """Of a job's files, by their places: those of other runs, and groups any of which may be the job."""

    others: tuple[int, ...] = ()
    misfits: Mapping[int, float] = field(default_factory=dict)
    """Per file of another run, what share of the collectives the best offset of clocks does not fit, the least one."""
    undecided: tuple[tuple[int, ...], ...] = ()


def sort_out(
    trace: Trace,
    of_file: Sequence[StepTimes],
    unmarked: frozenset[int],
    groups: Sequence[Collection[ProcessGroup]],
) -> Sorted:
    """Which of the files that make up `trace` are of other runs; `of_file` has each one's steps, by the job's numbers.

    `unmarked` are ranks whose steps are not numbered by the job itself, `groups` the process groups that each file
    lists where its operations do not say theirs.
    """
    if len(of_file) < 2:
        return Sorted()
    apart = _furthest_apart(trace)
    if apart <= _APART:
        return Sorted()
    steps = _looked_at(trace, of_file)
    if steps is None and apart <= _FAR_APART:
        return Sorted()
    from kair_engine.recording.alignment import shared  # loads numpy and pyarrow

    cells = {cell: place for place, times in enumerate(of_file) for cell in zip(times.rank, times.step, strict=True)}
    marked = frozenset(trace.job.ranks) - unmarked
    found = shared(trace, steps or trace.steps[:: max(len(trace.steps) // _FEW_STEPS, 1)], cells, marked)
    spans = [span_of(times) for times in of_file]
    fitting = {file for pair, one in found.items() if one.fits for file in pair}
    told = {
        pair: one.fits
        for pair, one in found.items()
        if one.fits or one.in_known_group or _must_fit(pair, groups, fitting, spans, trace.job.world_size)
    }
    others, left = _minority(told, spans)
    misfits = {
        file: min(one.misfits for pair, one in found.items() if file in pair and not one.fits) for file in others
    }
    return Sorted(tuple(others), misfits, _groups(left))


def _must_fit(
    pair: "Pair",
    groups: Sequence[Collection[ProcessGroup]],
    fitting: Collection[int],
    spans: Sequence[Span],
    world: int,
) -> bool:
    """Whether two files whose collectives name no group share some: all groups but the whole job's hold both.

    Of a rank with several groups all collectives may be in the other ones: stages of a pipeline meet in transfers
    alone. Parts of a job can run at paces of their own (replicas that serve), and then fit nobody outside. Where
    groups do not tell, only a file that fits no other at all does, if it was recorded at another time besides.
    """
    one, other = pair
    parts = [{group.ranks for group in groups[file] if 1 < len(group.ranks) < world} for file in pair]
    if parts[0] and parts[0] == parts[1]:
        return True
    alone = one not in fitting or other not in fitting
    return alone and not overlap(spans[one], spans[other])


def _furthest_apart(trace: Trace) -> float:
    """How unevenly steps end on the rank that is furthest from the others, as a share of the step: the median distance
    of their ends from what is usual of the two."""
    ends: dict[int, dict[int, int]] = {}
    times = trace.job.step_times
    wanted, cut = frozenset(trace.steps), trace.job.cut_off
    lengths = []
    for rank, step, begin, duration in zip(times.rank, times.step, times.begin_ns, times.duration_ns, strict=True):
        if step in wanted and rank not in cut.get(step, ()):
            ends.setdefault(rank, {})[step] = begin + duration
            lengths.append(duration)
    if len(ends) < 2:
        return 0.0
    usual = ends[max(ends, key=lambda rank: (len(ends[rank]), -rank))]
    return max(_uneven(of_rank, usual) for of_rank in ends.values()) / max(median(lengths), 1)


def _uneven(ends: Mapping[int, int], others: Mapping[int, int]) -> float:
    apart = [end - others[step] for step, end in ends.items() if step in others]
    if len(apart) < _FEWEST_STEPS:
        return math.inf if apart else 0.0
    middle = median(apart)
    return median(abs(one - middle) for one in apart)


def _looked_at(trace: Trace, of_file: Sequence[StepTimes]) -> list[int] | None:
    """As many steps as are looked at, evenly; None where even a few are too much to read unasked."""
    every = -(-len(trace.steps) // _MOST_STEPS)
    steps = list(trace.steps[::every])
    operations = sum(sum(times.operations) for times in of_file) / max(len(trace.job.recorded_steps), 1)
    fewer = int(_MOST_READ / max(operations, 1))
    if fewer >= len(steps):
        return steps
    return steps[:: -(-len(steps) // fewer)] if fewer >= _FEW_STEPS else None


def _minority(fits: Mapping["Pair", bool], spans: Sequence[Span]) -> tuple[list[int], dict["Pair", bool]]:
    """Return (the files of other runs, what is left of `fits` without them).

    One after another that which fits the fewest of those that it shares collectives with, as long as one of these fits
    more. Of equal ones it is the file that was recorded at another time than most.
    """
    left, others = dict(fits), list[int]()
    while not all(left.values()):
        misfit = {file: _misfit(file, left, spans) for pair in left for file in pair}
        worst = max(misfit, key=lambda file: (misfit[file], file))
        beside = [file for pair, fit in left.items() if worst in pair and not fit for file in pair if file != worst]
        if all(misfit[file] == misfit[worst] for file in beside):
            break
        others.append(worst)
        left = {pair: fit for pair, fit in left.items() if worst not in pair}
    return others, left


def _misfit(file: int, fits: Mapping["Pair", bool], spans: Sequence[Span]) -> tuple[float, float]:
    mine = [fit for pair, fit in fits.items() if file in pair]
    beside = {other for pair in fits for other in pair if other != file}
    elsewhen = [not overlap(spans[file], spans[other]) for other in beside]
    return 1 - sum(mine) / len(mine), sum(elsewhen) / max(len(elsewhen), 1)


def _groups(left: Mapping["Pair", bool]) -> tuple[tuple[int, ...], ...]:
    """Return the files that do not fit some others, with those that they fit; none where all do."""
    group = {file: {file} for pair in left for file in pair}
    for (one, other), fit in left.items():
        if fit and group[one] is not group[other]:
            group[one] |= group[other]
            for file in group[other]:
                group[file] = group[one]
    disputed = {file for pair, fit in left.items() if not fit for file in pair}
    return tuple(sorted({tuple(sorted(files)) for files in group.values() if files & disputed}))
