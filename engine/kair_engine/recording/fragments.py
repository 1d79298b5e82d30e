"""The parsed files of a recording, and which of them belong together.

Spans (begin and end in ns) show when recordings were made, by their own clocks. Of several recordings of calls, each
rank takes its best one. A folder with several runs is refused with a list of them, because none can be picked.

Files of another run among those of a job are found by shared collectives: if no offset of clocks makes them those of
one run, they are of two. Hosts' names and clocks do not decide: containers are all called `localhost`, and a rank whose
clock is a day off still belongs to the job.
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
    """A fragment and its description."""

    path: Path
    info: FragmentInfo


Span = tuple[int, int]


def span_of(times: StepTimes) -> Span:
    """Return the first begin of a step and the last end; (0, 0) without steps."""
    ends = (begin + length for begin, length in zip(times.begin_ns, times.duration_ns, strict=True))
    return min(times.begin_ns, default=0), max(ends, default=0)


def overlap(one: Span, other: Span) -> bool:
    """Return whether two spans share any time."""
    return max(one[0], other[0]) < min(one[1], other[1])


def at_one_time(spans: Sequence[Span]) -> list[int]:
    """Return per span a number, equal for those that overlap, directly or through others."""
    found, number, until = [0] * len(spans), -1, 0
    for at in sorted(range(len(spans)), key=lambda at: spans[at]):
        begin, end = spans[at]
        if number < 0 or begin >= until:
            number, until = number + 1, end
        found[at], until = number, max(until, end)
    return found


_DUMPS: Final = "flight_recorder"
_LOG: Final = "job_log"
SUBSTITUTES: Final = (_LOG, "ras")
"""Formats that are read if there is no recording: next to a job's traces or dumps they are no other job."""


def damaged_dumps(fragments: Sequence[Fragment], lost: Mapping[Path, int | None]) -> dict[Path, KairWarning]:
    """Return a warning for each file that is `lost` and was a dump; the values of `lost` are ranks.

    A rank with a damaged dump differs from one without a dump: its warning names the rank. Files count as dumps if
    their name is that of another dump except for its numbers.
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
    """Return the fragments without logs and answers of RAS where there are better sources.

    Next to dumps, a log is used for ranks without one; answers of RAS are left out next to logs, and both next to
    traces. A rank in several logs is taken from the one with most of its groups.
    """
    best = [one for one in fragments if one.info.format not in SUBSTITUTES]
    logs = [one for one in fragments if one.info.format == _LOG]
    if best and any(one.info.format != _DUMPS for one in best):
        return best, []
    kept = [*best] if best or logs else _newest_answer(fragments)
    covered = {rank for one in kept for rank in one.info.ranks if rank in one.info.calls}
    lacking: set[int] = set()
    said = [one for log in logs for one in log.info.said]
    for log in sorted(logs, key=lambda one: (-sum(map(len, one.info.calls.values())), one.info.source)):
        calls = {rank: of for rank, of in log.info.calls.items() if rank not in covered and (of or not covered)}
        if calls:
            info = replace(log.info, ranks=tuple(calls) if best else log.info.ranks, calls=calls, said=())
            # Next to dumps it counts as one: they have the job's size and format.
            kept.append(Fragment(log.path, replace(info, format=_DUMPS, world_size=None) if best else info))
            covered |= {*calls}
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
    """Return the last answer of NCCL's RAS; an earlier equal one distinguishes a hang from a running job."""
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
"""Ranks: of a single rank's two recordings the fuller one is used."""


def require_one_run(sources: Sequence[Path], fragments: Sequence[Fragment]) -> None:
    """Raise InputError if the files below `sources`, which are named as one job, are of several runs.

    Files in one folder are of one run, unless all of it is there twice; so are folders with other ranks (a folder each)
    or other steps of the run. In the what-if format every file is a run. Two parts that record the same step of a rank,
    or worlds of different sizes, are different runs.
    """
    of_run: dict[Path, list[Fragment]] = {}
    source, which = (sources[0], f"{sources[0]} holds") if len(sources) == 1 else (Path(), "the named files hold")
    fragments = [one for one in fragments if one.info.format not in SUBSTITUTES] or fragments
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
    """Raise InputError if as many ranks, at least two, recorded the same steps at one time as at another.

    Fewer files are left over from another run: the majority is the folder's.
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
    """Return whether one host wrote two of XLA's profiles at times that do not touch: sessions, a folder each."""
    infos = [fragment.info for fragment in (*one, *other)]
    if any(info.format != "xplane" or info.rank_known or not info.absolute_time for info in infos):
        return False
    hosts = [{host for fragment in some for host in fragment.info.hosts.values()} for some in (one, other)]
    spans = [
        span_of(StepTimes.of_rows(row for one in some for row in one.info.step_times.rows())) for some in (one, other)
    ]
    return bool(hosts[0] & hosts[1]) and not overlap(*spans)


def _cells(some: Sequence[Fragment]) -> set[tuple[int, int]]:
    """Return the recorded (rank, step).

    Files without a rank get different ones by their order, and do not count.
    """
    known = [fragment.info.step_times for fragment in some if fragment.info.rank_known]
    return {cell for times in known for cell in zip(times.rank, times.step, strict=True)}


def _ranks(some: Sequence[Fragment]) -> str:
    return listed([rank for fragment in some for rank in fragment.info.ranks])


def _relative(path: Path, source: Path) -> str:
    """Return a path relative to the folder's name, on one line of bounded length."""
    name = str(path.relative_to(source)) if path.is_relative_to(source) else str(path)
    return " ".join(name.split())[:MAX_MESSAGE_LENGTH]


_APART: Final = 0.01
"""Share of the step: ranks whose steps end this evenly apart are not compared further. If they were of two runs, these
would be so similar that no result changes."""
_FAR_APART: Final = 0.1
"""The same if much would have to be read: in no known run ranks were more than 0.04 apart."""
_FEWEST_STEPS: Final = 3
"""In fewer steps, any two ranks' ends lie about evenly apart."""
_FEW_STEPS, _MOST_STEPS = 8, 32
"""Number of compared steps, spread evenly: the few if steps are large."""
_MOST_READ: Final = 8_000_000
"""Operations."""


@dataclass(frozen=True)
class Sorted:
    """A job's files by index: those of other runs, and groups any of which may be the job."""

    others: tuple[int, ...] = ()
    misfits: Mapping[int, float] = field(default_factory=dict)
    """Per file of another run, the least share of collectives that do not fit the best offset of clocks."""
    undecided: tuple[tuple[int, ...], ...] = ()


def sort_out(
    trace: Trace,
    of_file: Sequence[StepTimes],
    unmarked: frozenset[int],
    groups: Sequence[Collection[ProcessGroup]],
) -> Sorted:
    """Return the files of `trace` that are of other runs; `of_file` has each one's steps, by the job's numbers.

    `unmarked` are ranks whose steps the job does not number; `groups` are the process groups that each file lists if
    its operations do not state theirs.
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
    fits = {
        pair: one.fits
        for pair, one in found.items()
        if one.fits or one.in_known_group or _must_fit(pair, groups, fitting, spans, trace.job.world_size)
    }
    others, left = _minority(fits, spans)
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
    """Return whether two files without stated groups must share collectives: all groups but the whole job's hold both.

    A rank with several groups may have all its collectives in the other ones: stages of a pipeline meet only in
    transfers. Parts of a job may run at their own pace (replicas that serve) and then fit no file outside. If groups do
    not decide, a file only counts if it fits no other at all and was recorded at another time.
    """
    one, other = pair
    parts = [{group.ranks for group in groups[file] if 1 < len(group.ranks) < world} for file in pair]
    if parts[0] and parts[0] == parts[1]:
        return True
    alone = one not in fitting or other not in fitting
    return alone and not overlap(spans[one], spans[other])


def _furthest_apart(trace: Trace) -> float:
    """Return how unevenly steps end on the rank furthest from the others, as a share of the step.

    That is the median deviation of the distance between two ranks' ends from its usual value.
    """
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
    """Return the steps to compare, spread evenly; None if even a few are too much to read."""
    every = -(-len(trace.steps) // _MOST_STEPS)
    steps = list(trace.steps[::every])
    operations = sum(sum(times.operations) for times in of_file) / max(len(trace.job.recorded_steps), 1)
    fewer = int(_MOST_READ / max(operations, 1))
    if fewer >= len(steps):
        return steps
    return steps[:: -(-len(steps) // fewer)] if fewer >= _FEW_STEPS else None


def _minority(fits: Mapping["Pair", bool], spans: Sequence[Span]) -> tuple[list[int], dict["Pair", bool]]:
    """Return (the files of other runs, the rest of `fits` without them).

    Removes, one after another, the file that fits the fewest of those it shares collectives with, while one of these
    fits more. Ties go to the file that was recorded at another time than most.
    """
    left, others = dict(fits), list[int]()
    while not all(left.values()):
        misfit = {file: _misfit(file, left, spans) for pair in left for file in pair}
        worst = max(misfit, key=lambda file: (misfit[file], file))
        rivals = [file for pair, fit in left.items() if worst in pair and not fit for file in pair if file != worst]
        if all(misfit[file] == misfit[worst] for file in rivals):
            break
        others.append(worst)
        left = {pair: fit for pair, fit in left.items() if worst not in pair}
    return others, left


def _misfit(file: int, fits: Mapping["Pair", bool], spans: Sequence[Span]) -> tuple[float, float]:
    mine = [fit for pair, fit in fits.items() if file in pair]
    partners = {other for pair in fits for other in pair if other != file}
    elsewhen = [not overlap(spans[file], spans[other]) for other in partners]
    return 1 - sum(mine) / len(mine), sum(elsewhen) / max(len(elsewhen), 1)


def _groups(left: Mapping["Pair", bool]) -> tuple[tuple[int, ...], ...]:
    """Return groups of files that fit each other, if some do not fit others; empty if all do."""
    group = {file: {file} for pair in left for file in pair}
    for (one, other), fit in left.items():
        if fit and group[one] is not group[other]:
            group[one] |= group[other]
            for file in group[other]:
                group[file] = group[one]
    disputed = {file for pair, fit in left.items() if not fit for file in pair}
    return tuple(sorted({tuple(sorted(files)) for files in group.values() if files & disputed}))
