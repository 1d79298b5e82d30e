"""Merges blame paths that are alike, and folds the stops in the middle of long ones."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kair_engine.results.blame import BlamePath, PathNode, PathPart, RootCause
from kair_tui.render.text import short_name
from kair_tui.render.views.blame.paths import Key, end_of, key_of

MOST_STOPS = 5
"""Of a path that is shown whole; of a longer one the stops in the middle are folded away."""
_BEFORE_FOLD, _AFTER_FOLD = 1, 2


@dataclass(frozen=True)
class MergedPath:
    """Paths from waits in the same operator to the same end."""

    path: BlamePath
    """The path with the longest wait."""
    waited_us: float
    """Of all of them together; of a question about one root cause, what it explains."""
    ranks: tuple[int, ...]
    """The rank that waited longest in each path, sorted."""
    steps: tuple[int, ...]
    count: int
    part: PathPart | None = None
    """The root cause that is asked about, of `path`; None where that is at its end, or none is."""


def stops(path: BlamePath) -> tuple[PathNode, ...]:
    """What is under the symptom, the place where it began last."""
    return tuple(node for node in path.chain if node != path.symptom)


def merged(paths: Sequence[BlamePath], cause: RootCause | None = None) -> tuple[MergedPath, ...]:
    """Alike paths as one, what was waited most first; with `cause` only its part of each path counts."""
    alike: dict[tuple[str, Key], list[BlamePath]] = defaultdict(list)
    for path in paths:
        alike[short_name(path.symptom.operator), end_of(path)].append(path)
    return _by_waiting([_merge(members, cause) for members in alike.values()])


def each(paths: Sequence[BlamePath], cause: RootCause | None = None) -> tuple[MergedPath, ...]:
    """Every path by itself, in the same order."""
    return _by_waiting([_merge([path], cause) for path in paths])


def folded_stops(path: BlamePath) -> range:
    """The places in `stops(path)` that are folded away: of a long path those in its middle."""
    length = len(stops(path))
    return range(_BEFORE_FOLD, length - _AFTER_FOLD) if length > MOST_STOPS else range(0)


def _by_waiting(found: Sequence[MergedPath]) -> tuple[MergedPath, ...]:
    return tuple(sorted(found, key=lambda one: -one.waited_us))


def _merge(members: Sequence[BlamePath], cause: RootCause | None) -> MergedPath:
    waited = [_waited(path, cause) for path in members]
    path = members[waited.index(max(waited))]
    return MergedPath(
        path=path,
        waited_us=sum(waited),
        ranks=tuple(sorted({path.symptom.rank for path in members})),
        steps=tuple(sorted({path.step for path in members})),
        count=len(members),
        part=None if cause is None or key_of(cause) == end_of(path) else _part(path, cause),
    )


def _waited(path: BlamePath, cause: RootCause | None) -> float:
    if cause is None or not path.parts:
        return path.waited_us
    part = _part(path, cause)
    return path.waited_us * part.share if part is not None else 0.0


def _part(path: BlamePath, cause: RootCause) -> PathPart | None:
    """The shares of a root cause that comes more than once, together."""
    found = [part for part in path.parts if key_of(part) == key_of(cause)]
    return replace(found[0], share=sum(part.share for part in found)) if found else None
