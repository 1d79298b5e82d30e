"""One run at a time: a folder that holds several of them lists them, and none is picked."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

from kair_engine.errors import InputError
from kair_engine.recording.call_sources import BESIDE
from kair_engine.recording.fragment import Fragment
from kair_engine.recording.spans import at_one_time, overlap, span_of
from kair_engine.trace.model import StepTimes
from kair_engine.trace.warning_texts import MAX_MESSAGE_LENGTH, listed

_LISTED = 8
_SEVERAL = 2
"""Ranks: of a single one's two recordings the fuller one is taken."""


def require_one_run(source: Path, fragments: Sequence[Fragment]) -> None:
    """Raises InputError where the files below the folder `source` are of several runs.

    Files in one folder are of one run, unless all of it is there twice, as are folders that hold other ranks (a folder
    each) or other steps of it. Of the what-if format every file is a run. Two that record the same step of a rank, or
    worlds of different sizes, are not one.
    """
    of_run: dict[Path, list[Fragment]] = {}
    fragments = [one for one in fragments if one.info.format not in BESIDE] or fragments
    for fragment in fragments:
        path = Path(fragment.info.source)
        of_run.setdefault(path if fragment.info.format == "whatif" else path.parent, []).append(fragment)
    if len(of_run) == 1:
        _require_one_time(source, fragments)
    if len(of_run) < 2 or not any(_differ(*pair) for pair in combinations(of_run.values(), 2)):
        return
    names = [f"{_relative(path, source)} (ranks {_ranks(some)})" for path, some in sorted(of_run.items())]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    hint = f"name one of them: {source / _relative(min(of_run), source)}"
    raise InputError(f"{source} holds {len(names)} runs: {', '.join(names[:_LISTED])}{more}", hint)


def _require_one_time(source: Path, fragments: Sequence[Fragment]) -> None:
    """Raises InputError where as many ranks recorded the same steps at one time as at another, two ranks at least.

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
            raise InputError(f"{source} holds 2 runs, which recorded the same steps: {runs}", hint)


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
    """The (rank, step) that are recorded; files that do not say their rank get one by their order, another each."""
    known = [fragment.info.step_times for fragment in some if fragment.info.rank_known]
    return {cell for times in known for cell in zip(times.rank, times.step, strict=True)}


def _ranks(some: Sequence[Fragment]) -> str:
    return listed([rank for fragment in some for rank in fragment.info.ranks])


def _relative(path: Path, source: Path) -> str:
    """As one types it after the folder's name, on one line of bounded length."""
    name = str(path.relative_to(source)) if path.is_relative_to(source) else str(path)
    return " ".join(name.split())[:MAX_MESSAGE_LENGTH]
