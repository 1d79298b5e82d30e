"""Assembles one job from fragments: which belong together, which ranks and steps exist, and what is missing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.readers.formats import ONE_CLOCK
from kair_engine.recording.fragments import (
    Fragment,
    Sorted,
    Span,
    at_one_time,
    overlap,
    sort_out,
    span_of,
    with_calls_once,
)
from kair_engine.recording.peers import peers_are_ranks
from kair_engine.recording.places import joined_layout
from kair_engine.recording.step_numbers import (
    borne_out,
    counted_differently,
    renumbered,
    renumbering_warnings,
    steps_on_devices,
    usable_steps,
)
from kair_engine.trace.identity import RankIdentity, merged
from kair_engine.trace.model import (
    DerivedGroups,
    FragmentInfo,
    Job,
    KairWarning,
    ProcessGroup,
    StepTimes,
    Trace,
    listed,
    sent_of_all,
    short_warning,
)

_UNMARKED: Final = frozenset(("steps_inferred", "no_step_marks"))
"""Codes of warnings about files whose reader numbered the steps: others may number the same ones differently."""


@dataclass(frozen=True)
class AssembledJob:
    """A trace, with the data from which a store can rebuild it."""

    trace: Trace
    fragments: tuple[Fragment, ...]
    input_warnings: tuple[KairWarning, ...]
    """About files that did not become part of it: the fragments do not show them."""


def assemble(name: str, source: str, fragments: Sequence[Fragment], warnings: Sequence[KairWarning]) -> AssembledJob:
    """Return the job that `fragments` make up; `warnings` are about files that became none.

    Fragments of another world, duplicates, and those of another run are set aside. Raises InputError if none is left.
    """
    if not fragments:
        raise InputError(f"no trace in {source}")
    once, of_calls = with_calls_once(fragments)
    of_world, of_worlds = keep_one_world(once)
    kept, doubled = keep_one_of_each(of_world)
    made = _joined(name, source, kept, (*warnings, *of_calls, *of_worlds, *doubled))
    runs = _sorted_out(made)
    if not runs.others:
        return _with_undecided(made, runs)
    others = [kept[place] for place in runs.others]
    # A duplicate may be of the run.
    rest = [fragment for fragment in fragments if fragment not in others]
    recorded = {rank for fragment in rest for rank in fragment.info.ranks}
    return assemble(name, source, rest, (*warnings, _other_run(others, runs, recorded)))


def _joined(name: str, source: str, kept: Sequence[Fragment], of_input: tuple[KairWarning, ...]) -> AssembledJob:
    """Return the job of all these fragments."""
    infos = [fragment.info for fragment in kept]
    ranks = tuple(sorted({Rank(rank) for info in infos for rank in info.ranks}))
    stated = max((info.world_size or 0 for info in infos), default=0)
    times = _joined_step_times(infos)
    hosts = {rank: host for info in infos for rank, host in sorted(info.hosts.items())}
    on_one_clock = infos[0].format == "kineto" and all(info.absolute_time for info in infos)
    paths = [fragment.path for fragment in kept]
    unmarked = _unmarked(infos)
    clock_of = _clock_of(infos)
    matched, of_matching = _matched(infos, paths, unmarked, hosts, clock_of)
    by_time = counted_differently(times, hosts) if on_one_clock else {}
    by_time = {rank: more for rank, more in by_time.items() if rank not in matched}
    by_time = borne_out(by_time, hosts, paths) if by_time else {}
    by_time |= _off_in_their_file(times, clock_of, unmarked - matched.keys())
    if on_one_clock and not unmarked and _begin_apart(renumbered(times, by_time)):
        from kair_engine.recording.alignment import renumbered_by_collectives  # loads numpy, for few jobs

        alignment = renumbered_by_collectives(paths, ranks)
        matched, of_matching = alignment.more, alignment.warnings()
        by_time = {} if matched else by_time
    apart = _set_apart(unmarked, matched, times, hosts if on_one_clock else {})
    shift = {rank: more for rank, more in {**by_time, **matched, **apart}.items() if more}
    times = renumbered(times, shift)
    truncated, as_ranks = _truncated(infos), peers_are_ranks(infos, paths)
    usable = usable_steps(times, ranks, on_all=bool(matched), truncated=truncated)
    on_devices = steps_on_devices(times)
    job = Job(
        name=name,
        source=source,
        format=infos[0].format,
        world_size=max(stated, max(ranks) + 1),
        ranks=ranks,
        hosts=hosts,
        layout=joined_layout(infos, as_ranks),
        device=next((info.device for info in infos if info.device is not None), None),
        has_device=any(info.has_device for info in infos),
        absolute_time=all(info.absolute_time for info in infos),
        steps=usable.steps,
        step_times=on_devices or times,
        host_times=None if on_devices is None else times,
        operations=sum(info.operations for info in infos),
        warnings=(),
        cut_off=usable.cut_off,
        step_shift=shift,
        truncated=truncated,
        peers_are_ranks=as_ranks,
        progress={rank: calls for info in infos for rank, calls in sorted(info.calls.items())},
        said=tuple(dict.fromkeys(one for info in infos for one in info.said)),
        limits={rank: of_rank for info in infos for rank, of_rank in sorted(info.limits.items())},
        sent=sent_of_all(infos),
        launch_queue={rank: queue for info in infos for rank, queue in sorted(info.launch_queue.items())},
        identity=_identity(infos, hosts),
        group_names={text: name for info in infos for text, name in info.group_names.items()},
        by_order=_by_order(infos),
        files=dict(sorted(Counter(rank for info in infos for rank in info.ranks).items())),
        clock_of=clock_of,
    )
    trace = Trace(job, tuple(fragment.path for fragment in kept), usable.steps)
    derived, unknown = _derived_groups(trace, infos)
    of_steps = (*renumbering_warnings(by_time), *of_matching, *usable.warnings)
    left_out = {rank for one in of_input if one.code == "other_run" for rank in one.ranks}
    found = (*of_input, *_shared_warnings(infos), *_missing(job, left_out), *of_steps, *unknown)
    trace = replace(trace, job=replace(job, warnings=found, derived=derived))
    return AssembledJob(trace, tuple(kept), of_input)


def _sorted_out(made: AssembledJob) -> Sorted:
    """Return which of the job's fragments are of other runs; missing recordings cannot be compared."""
    if made.trace.job.format == "whatif" or not all(fragment.path.exists() for fragment in made.fragments):
        return Sorted()
    infos = [fragment.info for fragment in made.fragments]
    times = [renumbered(info.step_times, made.trace.job.step_shift) for info in infos]
    unmarked = {rank for info in infos for one in info.warnings if one.code in _UNMARKED for rank in info.ranks}
    return sort_out(made.trace, times, frozenset(unmarked), [info.process_groups for info in infos])


def _other_run(others: Sequence[Fragment], runs: Sorted, recorded: AbstractSet[int]) -> KairWarning:
    """Return the warning about fragments of other runs; its `ranks` are those without another record in `recorded`."""
    ranks = tuple(sorted({Rank(rank) for fragment in others for rank in fragment.info.ranks}))
    misfits = min(runs.misfits[place] for place in runs.others)
    which = f"{'a file of ' if recorded >= {*ranks} else ''}rank {listed(ranks)}"
    text = (
        f"{which} left out, recorded in another run: no offset of clocks makes {misfits:.0%} of the collectives those "
        f"of the other ranks ({_names(others)})"
    )
    return short_warning("other_run", text, [rank for rank in ranks if rank not in recorded])


def _with_undecided(made: AssembledJob, runs: Sorted) -> AssembledJob:
    """Return the job, with a warning if its recordings are of several runs and it is unknown which one is the job's."""
    if not runs.undecided:
        return made
    groups = [
        tuple(Rank(rank) for place in group for rank in made.fragments[place].info.ranks) for group in runs.undecided
    ]
    text = (
        f"the recordings are of several runs: no offset of clocks makes the collectives of rank "
        f"{' and rank '.join(listed(group) for group in groups)} the same, and none of these is most of the job"
    )
    warning = short_warning("several_runs", text, {rank for group in groups for rank in group})
    job = replace(made.trace.job, warnings=(*made.trace.job.warnings, warning))
    return replace(made, trace=replace(made.trace, job=job))


def _identity(infos: Sequence[FragmentInfo], hosts: Mapping[int, str]) -> dict[int, RankIdentity]:
    """Return rank → the combined identity from its files, in their order, with the job's host."""
    found: dict[int, RankIdentity] = {}
    for info in infos:
        for rank, one in info.identity.items():
            found[rank] = merged(found[rank], one) if rank in found else one
    return {rank: replace(one, host=hosts.get(rank, one.host)) for rank, one in sorted(found.items())}


def _by_order(infos: Sequence[FragmentInfo]) -> dict[int, str]:
    """Return rank → its file's name, for ranks that are numbered by the order of several files."""
    unknown = [info for info in infos if not info.rank_known]
    return {rank: Path(info.source).name for info in unknown for rank in info.ranks} if len(infos) > 1 else {}


def _unmarked(infos: Sequence[FragmentInfo]) -> set[int]:
    """Return the ranks whose steps were counted from 0 because they have no marks."""
    return {rank for info in infos if any(one.code == "steps_inferred" for one in info.warnings) for rank in info.ranks}


def _matched(
    infos: Sequence[FragmentInfo],
    paths: Sequence[Path],
    unmarked: set[int],
    hosts: Mapping[int, str],
    clock_of: Mapping[int, int],
) -> tuple[dict[int, int], list[KairWarning]]:
    """Return rank → how much higher it numbers its steps than the job, for `unmarked` ones, if collectives show it."""
    if not unmarked:
        return {}, []
    from kair_engine.recording.alignment import aligned  # loads numpy, for few jobs

    numbered = {rank for info in infos for rank in info.ranks} - unmarked
    alignment = aligned(paths, unmarked, numbered, _clocks(infos, hosts), clock_of)
    return alignment.more, alignment.warnings()


def _clocks(infos: Sequence[FragmentInfo], hosts: Mapping[int, str]) -> dict[int, str]:
    """Return the clock of each rank that may share one: its host, which may be unknown, or its file."""
    found: dict[int, str] = {}
    for info in infos:
        if info.absolute_time or len(info.ranks) > 1:
            found |= {rank: hosts.get(rank, "") if info.absolute_time else info.source for rank in info.ranks}
    return found


def _begin_apart(times: StepTimes) -> bool:
    """Return whether ranks begin a step of one number more than a usual step apart, by clocks that may be off."""
    first: dict[int, tuple[int, int]] = {}
    for step, begin in zip(times.step, times.begin_ns, strict=True):
        least, most = first.get(step, (begin, begin))
        first[step] = min(least, begin), max(most, begin)
    apart = [most - least for least, most in first.values() if most > least]
    return bool(apart) and median(apart) > median(times.duration_ns)


def _off_in_their_file(times: StepTimes, clock_of: Mapping[int, int], counted: AbstractSet[int]) -> dict[int, int]:
    """Return rank → how far its step numbers exceed those of most ranks of its file, for `counted` ones, by time."""
    files = {rank: f"{number}" for rank, number in clock_of.items() if rank in counted}
    return counted_differently(times, files) if files else {}


def _clock_of(infos: Sequence[FragmentInfo]) -> dict[int, int]:
    """Return rank → a number of its file, for ranks that share a file of one host's recorder.

    A rank whose recording lies in several files shares the clock of the first of them.
    """
    found: dict[int, int] = {}
    for number, info in enumerate(infos):
        if info.format in ONE_CLOCK and len(info.ranks) > 1:
            found = dict.fromkeys(info.ranks, number) | found
    return found


def _set_apart(
    unmarked: set[int], matched: Mapping[int, int], times: StepTimes, hosts: Mapping[int, str]
) -> dict[int, int]:
    """Return rank → a shift of its steps beyond all others', for unmatched unmarked ranks among marked ones.

    They are matched by time with marked ranks on one of `hosts` if possible; else their steps cannot be identified.
    """
    counted, marked = unmarked - matched.keys(), set(times.rank) - unmarked
    if not counted or not marked:
        return {}
    beyond = max((step for rank, step in zip(times.rank, times.step, strict=True) if rank in marked), default=0) + 1
    span = dict.fromkeys(counted, (0, 0)) | _spans(times)
    same_host = {rank: [one for one in marked if rank in hosts and hosts.get(one) == hosts[rank]] for rank in counted}
    return {
        rank: -beyond for rank, others in same_host.items() if not any(overlap(span[rank], span[one]) for one in others)
    }


def _spans(times: StepTimes) -> dict[int, Span]:
    """Return rank → the begin of its first step and the end of its last one."""
    found: dict[int, Span] = {}
    for rank, begin, duration in zip(times.rank, times.begin_ns, times.duration_ns, strict=True):
        first, last = found.get(rank, (begin, begin))
        found[rank] = (min(first, begin), max(last, begin + duration))
    return found


def _derived_groups(trace: Trace, infos: Sequence[FragmentInfo]) -> tuple[DerivedGroups | None, list[KairWarning]]:
    if (of_rank := _group_of_all(infos)) and trace.job.format == "kineto":
        return DerivedGroups({}, {}, of_rank), []
    groups_of = {rank: info.process_groups for info in infos for rank in info.ranks if info.process_groups}
    if not groups_of:
        return None, []
    groups_of |= _groups_of_silent(infos, groups_of)
    from kair_engine.recording.process_groups import derive  # loads numpy and pyarrow, for few jobs

    return derive(trace, groups_of)


def _groups_of_silent(
    infos: Sequence[FragmentInfo], groups_of: Mapping[int, Sequence[ProcessGroup]]
) -> dict[int, tuple[ProcessGroup, ...]]:
    """Return the ranks whose files state nothing about the job → the groups that others list them in, in order."""
    listed = dict.fromkeys(group for groups in groups_of.values() for group in groups)
    silent = [rank for info in infos if info.world_size is None for rank in info.ranks]
    found = {rank: tuple(group for group in listed if rank in group.ranks) for rank in silent}
    return {rank: groups for rank, groups in found.items() if groups}


def _group_of_all(infos: Sequence[FragmentInfo]) -> dict[int, str]:
    """Return the ranks whose files state no process groups → the only group that all other files state."""
    stated = {info.only_group for info in infos if info.world_size is not None}
    (group, *others) = stated or {None}
    if group is None or others:
        return {}
    return {rank: group for info in infos if info.world_size is None for rank in info.ranks}


def keep_one_world(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[KairWarning]]:
    """Return the fragments of the world (format and stated size) of most ranks; an unstated size fits any."""
    formats = Counter(fragment.info.format for fragment in fragments)
    form = min(formats, key=lambda one: (-formats[one], one))
    votes: Counter[int] = Counter()
    for fragment in fragments:
        if fragment.info.format == form and fragment.info.world_size is not None:
            votes[fragment.info.world_size] += len(fragment.info.ranks)
    world = min(votes, key=lambda size: (-votes[size], -size), default=None)
    kept: list[Fragment] = []
    aside: list[Fragment] = []
    for fragment in fragments:
        info = fragment.info
        fits = info.format == form and info.world_size in (None, world)
        (kept if fits else aside).append(fragment)
    if not aside:
        return kept, []
    others = sorted({fragment.info.world_size for fragment in aside if fragment.info.world_size not in (None, world)})
    sizes = f"worlds of {world} and of {', '.join(map(str, others))} ranks" if others else "different formats"
    text = f"traces of {sizes} are mixed; set aside: {_names(aside)}"
    ranks = tuple(sorted({Rank(rank) for fragment in aside for rank in fragment.info.calls}))
    return kept, [short_warning("mixed_world_sizes", text, ranks)]


def keep_one_of_each(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[KairWarning]]:
    """Return the fragments without duplicates of a (rank, step).

    The one stays that was recorded at the time of most other ranks', then the fuller one, then the first by name.
    """
    if len(fragments) < 2:
        return list(fragments), []
    number = at_one_time([span_of(fragment.info.step_times) for fragment in fragments])
    present: dict[int, set[int]] = {}
    for fragment, at in zip(fragments, number, strict=True):
        present.setdefault(at, set()).update(fragment.info.ranks)
    by_time = sorted(
        zip(number, fragments, strict=True),
        key=lambda one: (-len(present[one[0]]), -one[1].info.operations, one[1].info.source),
    )
    taken: set[tuple[int, int]] = set()
    kept, aside = [], []
    for _, fragment in by_time:
        times = fragment.info.step_times
        cells = set(zip(times.rank, times.step, strict=True))
        if taken.isdisjoint(cells):
            taken |= cells
            kept.append(fragment)
        else:
            aside.append(fragment)
    kept.sort(key=lambda fragment: (fragment.info.ranks, fragment.info.step_times.step, fragment.info.source))
    if not aside:
        return kept, []
    ranks = sorted({rank for fragment in aside for rank in fragment.info.ranks})
    text = f"rank {listed(ranks)} has several traces of the same steps; set aside: {_names(aside)}"
    return kept, [short_warning("duplicate_rank", text)]


def _names(fragments: Sequence[Fragment]) -> str:
    names = sorted(Path(fragment.info.source).name for fragment in fragments)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _joined_step_times(infos: Sequence[FragmentInfo]) -> StepTimes:
    plain = all(info.step_times.is_plain for info in infos)
    return StepTimes.of_rows(sorted(row for info in infos for row in info.step_times.rows(plain=plain)))


def _truncated(infos: Sequence[FragmentInfo]) -> tuple[Rank, ...]:
    cut = (info for info in infos if any(warning.code == "truncated_file" for warning in info.warnings))
    return tuple(sorted({Rank(rank) for info in cut for rank in info.ranks}))


def _shared_warnings(infos: Sequence[FragmentInfo]) -> list[KairWarning]:
    """Return the fragments' own warnings, each once."""
    by_code: dict[str, list[str]] = {}
    for info in infos:
        for warning in info.warnings:
            by_code.setdefault(warning.code, []).append(warning.message)
    found = []
    for code, messages in by_code.items():
        more = f" (and {len(messages) - 1} more files)" if len(messages) > 1 else ""
        found.append(short_warning(code, messages[0] + more))
    return found


def _missing(job: Job, left_out: AbstractSet[int]) -> list[KairWarning]:
    missing = tuple(rank for rank in job.missing_ranks if rank not in left_out)
    is_of_texts = bool(job.said) and not any(job.progress.values())
    if not missing or is_of_texts:
        return []
    word = "rank" if len(missing) == 1 else "ranks"
    text = f"{len(missing)} of {job.world_size} ranks left no trace: {word} {listed(missing)}"
    return [short_warning("missing_ranks", text)]
