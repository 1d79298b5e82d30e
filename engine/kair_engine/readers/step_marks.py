"""Finds the begins and ends of training steps from marks of any profiler: ranges with numbers, ranges that repeat.

Also finds steps from a training loop's calls that occur once in each: the optimizer's step, its zero_grad, the next
batch; and, in recordings without marks, from a sequence of operations that repeats.

A step contains every recurring operation. It ends with the optimizer's operations; without these it has the shortest
period under which the whole sequence repeats. If the sequence repeats except for a few operations, as real ones do, a
step lies between two calls of an operation that runs once in each, with about the same operations between any two of
its calls; of several the one that is called least often, because layers and microbatches repeat within a step, too.

Operations alone decide where a step is cut, not the begin of the recording: ranks that run one program are cut alike.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from kair_engine.frozen import dataclass
from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.trace.columns import Int64s
from kair_engine.trace.model import KairWarning, short_warning

OUTSIDE: Final = -1
_LATEST: Final = 1 << 61
_MOST_STEPS: Final = 1 << 31
_NUMBERED: Final = re.compile(r"^(?P<stem>.*?)[\s#:=_\-\[(]*(?P<number>\d{1,9})[\])]?\s*$", re.DOTALL)
_STEP_WORD: Final = re.compile(
    r"(?:^|[^a-z])(?:step|iteration|iter|batch|profilerstep|train)(?:[^a-z]|$)", re.IGNORECASE
)
# Ranges around the optimizer's own step are no training steps.
_NO_STEP: Final = re.compile(r"optimi[sz]er|zero_grad|epoch|warm.?up|valid|eval", re.IGNORECASE)
_COUNTS: Final = re.compile(r"[\d\[({]")
"""Where the variable part of a name begins: its number, the requests that it serves, sizes."""
_COUNT: Final = re.compile(r"\d{1,9}")
_FEWEST_NAMED: Final = 2
_FEWEST: Final = 3
"""Ranges needed to find steps: with a name that says step, and with any other."""
_ROUNDED_NS: Final = 1_000
"""Tolerated overlap of successive ranges: times are written in microseconds."""
_SPANS: Final = 0.5
"""Share of the work that must lie in ranges that span iterations."""


@dataclass(frozen=True)
class Mark:
    """A range that may be a step: its name, begin and end in ns."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Steps:
    """Steps by their begin, without overlaps: number, begin and end in ns."""

    number: Int64s
    begin: Int64s
    end: Int64s
    inferred_from: str | None = None
    """The range from which steps without numbers were inferred."""
    is_whole_recording: bool = False
    """True if no steps were found, and the whole recording counts as one."""

    def index_at(self, moments: Int64s) -> Int64s:
        """Return the index of the step whose window holds each moment, or OUTSIDE."""
        index = np.searchsorted(self.begin, moments, "right") - 1
        inside = (index >= 0) & (moments < self.end[np.maximum(index, 0)])
        if self.is_whole_recording:
            inside |= moments == self.end[0]
        return np.where(inside, index, OUTSIDE)

    def warnings(self, source: Path, mark: str) -> tuple[KairWarning, ...]:
        """Return warnings for steps without marks; `mark` is how the recorder would have marked them."""
        if self.is_whole_recording:
            text = f"{source.name} marks no steps ({mark}); the whole recording counts as one step"
            return (short_warning("no_step_marks", text),)
        if self.inferred_from is not None:
            text = f"{source.name} numbers no steps ({mark}); its {len(self.number)} steps are found by "
            return (short_warning("steps_inferred", text + self.inferred_from),)
        return ()


def steps_of(windows: Iterable[tuple[int, int, int]], inferred_from: str | None = None) -> Steps:
    """Return steps from (number, begin, end); of two with one number the longer, of two that overlap the earlier.

    Impossible windows are left out: those that end before they begin, or at times that no clock reads.
    """
    longest: dict[int, tuple[int, int]] = {}
    for number, begin, end in windows:
        if not -_LATEST < begin <= end < _LATEST or not 0 <= number < _MOST_STEPS:
            continue
        if number not in longest or end - begin > longest[number][1] - longest[number][0]:
            longest[number] = (begin, end)
    kept: list[tuple[int, int, int]] = []
    for number, (begin, end) in sorted(longest.items(), key=lambda item: item[1]):
        if not kept or begin >= kept[-1][2] - _ROUNDED_NS:
            kept.append((number, begin, end))
    columns = np.array(kept, np.int64).reshape(-1, 3)
    return Steps(columns[:, 0], columns[:, 1], columns[:, 2], inferred_from)


def one_step(extent: tuple[int, int]) -> Steps:
    """Return the whole recording as one step."""
    return Steps(np.array([0]), np.array([extent[0]]), np.array([extent[1]]), is_whole_recording=True)


def marked_steps(marks: Sequence[Mark], work: Int64s) -> Steps | None:
    """Return the steps in ranges of one thread: those with numbers (`step 12`), else one that spans each iteration.

    `work` are the times of calls, launches or operations, in order. A range spans iterations if it contains more than
    half of them: `train_step`, a server's `execute_context_0(0)_generation_8(8)`. None if no range does.
    """
    found = max(_numbered(marks), key=lambda steps: int((steps.end - steps.begin).sum()), default=None)
    return _spanning(marks, work) if found is None else found


def _numbered(marks: Sequence[Mark]) -> Iterator[Steps]:
    """Yield the steps of each name that says it is a step and gives every range another number."""
    families: dict[str, list[tuple[int | None, Mark]]] = {}
    for mark in marks:
        if (named := _stem_and_number(mark.name)) is not None:
            families.setdefault(named[0], []).append((named[1], mark))
    for some in families.values():
        numbers = {number for number, _ in some}
        if None not in numbers and len(numbers) == len(some):
            found = steps_of((number, mark.begin, mark.end) for number, mark in some if number is not None)
            if len(found.number):
                yield found


@lru_cache(1 << 14)  # a recording has few different names, each many times
def _stem_and_number(name: str) -> tuple[str, int | None] | None:
    """Return the stem of a possible step's name, and its final number; None for other ranges."""
    numbered = _NUMBERED.match(name)
    stem = numbered["stem"] if numbered else name
    if _NO_STEP.search(stem) or (stem and not _STEP_WORD.search(stem)):
        return None
    return stem, int(numbered["number"]) if numbered else None


def _spanning(marks: Sequence[Mark], work: Int64s) -> Steps | None:
    """Return the steps of the ranges, equal except for counts in their names, that contain most of the work.

    Of several that contain as much, those that name a step come first, then the outermost.
    """
    families: dict[str, list[Mark]] = {}
    for mark in marks:
        if (stem := _stem(mark.name)) is not None:
            families.setdefault(stem, []).append(mark)
    best: tuple[tuple[bool, float, int, int], Steps] | None = None
    for stem, some in families.items():
        windows = _outermost(some)
        names_a_step = bool(_STEP_WORD.search(stem))
        if len(windows) < (_FEWEST_NAMED if names_a_step else _FEWEST):
            continue
        begin, end = np.array([(one.begin, one.end) for one in windows], np.int64).T.copy()
        within = np.searchsorted(work, end) - np.searchsorted(work, begin)
        share = float(within.sum()) / max(len(work), 1)
        worth = (names_a_step, round(share, 1), -len(windows), int((end - begin).sum()))
        if share > _SPANS and (best is None or worth > best[0]):
            best = worth, _one_after_another(stem.strip(), begin, end)
    return None if best is None else best[1]


@lru_cache(1 << 14)
def _stem(name: str) -> str | None:
    """Return the constant part of the names of all iterations; None for a range that is a part of one."""
    if _NO_STEP.search(name) or name_class_of(name) not in (NameClass.PLAIN, NameClass.STEP):
        return None
    return name[:1] + _COUNTS.split(name[1:], maxsplit=1)[0]


def _outermost(some: list[Mark]) -> list[Mark]:
    """Return the ranges inside no other, in order; ranges that are numbered from the start in each iteration are
    joined.
    """
    windows: list[Mark] = []
    for mark in sorted(some, key=lambda one: (one.begin, -one.end)):
        if not windows or mark.end > windows[-1].end:
            windows.append(mark)
    numbers = [int(found[0]) if (found := _COUNT.search(one.name)) else -1 for one in windows]
    firsts = [at for at, number in enumerate(numbers) if number == min(numbers)]
    apart = {later - sooner for sooner, later in pairwise(firsts)}
    if len(apart) != 1 or apart == {1}:
        return windows
    (each,) = apart
    whole = [range(first, first + each) for first in firsts if first + each <= len(windows)]
    if any(numbers[at] >= numbers[at + 1] for of in whole for at in of[:-1]):
        return windows
    return [Mark(windows[of[0]].name, windows[of[0]].begin, windows[of[-1]].end) for of in whole]


def _one_after_another(stem: str, begin: Int64s, end: Int64s) -> Steps:
    """Extend each step to the begin of the next range, unless the gap is longer than a step."""
    until = np.append(begin[1:], end[-1])
    end = np.where(until - end <= np.median(end - begin), until, end)
    return Steps(np.arange(len(begin)), begin, end, stem)


_SIGNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"optimizer\.step#", r"optimizer\.zero_grad#", r"enumerate\(dataloader\)")
)
"""The best first: gradients may be zeroed, and batches be fetched, several times a step."""
_FEWEST_MARKS: Final = 3
"""A mark must occur this often: two steps lie between them."""
_WHOLE: Final = 1.5
"""Limit, in usual steps, of the work at the recording's edge that may count as a step."""


def between_optimizers(marks: Sequence[Mark], work: Int64s, extent: tuple[int, int]) -> Steps | None:
    """Return the steps between the best of the marks, numbered from 0; None if none exists.

    A step ends with the optimizer's; it begins with zeroing gradients or fetching a batch. Of several optimizers the
    one that steps least often counts. `work` are the times of calls, launches or operations, in order: the part before
    the first mark, or after the last, is a step if it contains as much work as one.
    """
    for at, sign in enumerate(_SIGNS):
        seen: dict[str, list[Mark]] = {}
        for mark in marks:
            if sign.match(mark.name):
                seen.setdefault(mark.name, []).append(mark)
        names = sorted(name for name, some in seen.items() if len(some) >= _FEWEST_MARKS)
        if names:
            name = min(names, key=lambda one: len(seen[one]))
            return _between(name, seen[name], work, extent, ends=at == 0)
    return None


def _between(name: str, seen: Sequence[Mark], work: Int64s, extent: tuple[int, int], *, ends: bool) -> Steps:
    inner = sorted(mark.end if ends else mark.begin for mark in seen)
    edges = np.array([extent[0], *inner] if ends else [*inner, extent[1] + 1], np.int64)
    held = np.diff(np.searchsorted(work, edges))
    edge, whole = (held[0], held[1:]) if ends else (held[-1], held[:-1])
    if not whole.min() <= edge <= _WHOLE * np.median(whole):
        edges = edges[1:] if ends else edges[:-1]
    return Steps(np.arange(len(edges) - 1), edges[:-1], edges[1:], name)


_FEWEST_REPEATED: Final = 3
"""Steps needed to establish a repetition."""
_ALIKE: Final = 0.9
"""Share of a step's operations that it must have in common with the usual one."""
_MOST: Final = 0.75
"""Share of the steps that must resemble the usual one, and of all operations that must lie in such steps."""
_EVENLY: Final = 0.25
"""Tolerated deviation of most counts of operations between two calls, as a share of the usual count."""
_MOST_TRIED: Final = 64
_MOST_CELLS: Final = 20_000_000
_OPTIMIZER: Final = re.compile(r"adam|lamb|adagrad|rmsprop|(^|[^a-z])sgd|optimi[sz]er", re.IGNORECASE)
_NEXT_TOKEN: Final = re.compile(r"argmax|multinomial|sampling|sampler|top_?[kp]([^a-z]|$)", re.IGNORECASE)
_COLLECTIVES: Final = (NameClass.DEVICE_COLLECTIVE, NameClass.HOST_COLLECTIVE, NameClass.COLLECTIVE_CALL)


@dataclass(frozen=True)
class Repetition:
    """Begins of the steps in a sequence, and the end of the last: indices into it, the last one at most its length."""

    bounds: Int64s
    inferred_from: str
    is_sure: bool = False
    """Whether an optimizer, which runs once a step, marks the steps."""

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.bounds) - 1


def repetition(name: Int64s, texts: list[str]) -> Repetition | None:
    """Return the steps of the sequence `name` (codes, indices into `texts`), or None if nothing repeats."""
    codes, dense = np.unique(name, return_inverse=True)
    if len(codes) < 2 or len(name) < _FEWEST_REPEATED * len(codes):
        return None
    names = [texts[code] for code in codes.tolist()]
    return _after_optimizers(dense, names) or _exactly(dense, names) or _about(dense, names)


def _after_optimizers(name: Int64s, names: list[str]) -> Repetition | None:
    """Return steps from one optimizer's last operation to the next: robust to loops that log every few steps."""
    counts = np.bincount(name)
    optimizers = [at for at, text in enumerate(names) if _OPTIMIZER.search(text) and counts[at] >= _FEWEST_REPEATED]
    for one in sorted(optimizers, key=lambda at: (counts[at], names[at])):
        calls = np.flatnonzero(name == one)
        apart = np.diff(calls)
        # It may be called for each part of the parameters.
        calls = calls[np.append(2 * apart > apart.max(), True)]
        if len(calls) >= _FEWEST_REPEATED and (usual := _parts_alike(name, calls, len(names))) is not None:
            return _between_calls(name, names, one, calls, usual, ends=True, is_sure=True)
    return None


def _exactly(name: Int64s, names: list[str]) -> Repetition | None:
    """Return the repetition of a sequence that repeats exactly."""
    counts = np.bincount(name)
    calls = np.flatnonzero(name == counts.argmin())
    for often in range(1, min(len(calls) - 1, _MOST_TRIED) + 1):
        period = int(calls[often] - calls[0])
        if _FEWEST_REPEATED * period > len(name):
            return None
        if (calls[often:] - calls[:-often] == period).all() and np.array_equal(name[period:], name[:-period]):
            return _cut(name, names, period)
    return None


def _cut(name: Int64s, names: list[str], period: int) -> Repetition:
    """Return the whole periods, each from or up to one operation."""
    cycle = name[:period]
    often = np.bincount(cycle, minlength=len(names))
    one = min(np.flatnonzero(often == often.min()).tolist(), key=lambda at: _preference(names[at]))
    ends = _is_last(names[one]) or (len(name) % period == 0 and _ends_with(name, one))
    places = np.flatnonzero(cycle == one)
    # Of several calls the one next to the longest stretch without any.
    apart = np.diff(places, append=places[0] + period) if ends else np.diff(places, prepend=places[-1] - period)
    longest = places[apart == apart.max()].tolist()
    place = min(longest, key=lambda at: [names[code] for code in np.roll(cycle, -at)] if len(longest) > 1 else [])
    first = (place + ends) % period
    return Repetition(np.arange(first, len(name) + 1, period), _words(names[one], ends=ends))


def _preference(name: str) -> tuple[int, str]:
    """Return the rank of an operation among equally frequent ones: the lowest is chosen on all ranks."""
    signs = (_OPTIMIZER.search(name), _NEXT_TOKEN.search(name), name_class_of(name) in _COLLECTIVES)
    return next((at for at, sign in enumerate(signs) if sign), len(signs)), name


def _is_last(name: str) -> bool:
    """Return whether a step ends with it: an optimizer's work, the choice of a token, or one that all ranks leave at
    once.
    """
    return _preference(name)[0] < 3


def _ends_with(name: Int64s, one: int) -> bool:
    """Return whether a recording of whole steps shows that they end, and do not begin, with the operation `one`."""
    return bool(name[-1] == one != name[0])


def _words(name: str, *, ends: bool) -> str:
    return f"what repeats {'up to' if ends else 'from'} {name}{'' if ends else ' on'}"


def _about(name: Int64s, names: list[str]) -> Repetition | None:
    """Return the repetition of a sequence that repeats approximately."""
    counts = np.bincount(name)
    possible = np.flatnonzero((counts > _FEWEST_REPEATED) & (2 * counts <= len(name)))
    tried = 0
    for one in sorted(possible.tolist(), key=lambda at: (counts[at], names[at])):
        if not _is_even(np.flatnonzero(name == one)):
            continue
        tried += 1
        if tried > _MOST_TRIED:
            return None
        if _parts_alike(name, np.flatnonzero(name == one), len(names)) is not None:
            best = _best(name, names, counts, one)
            calls = np.flatnonzero(name == best)
            usual = _parts_alike(name, calls, len(names))
            assert usual is not None
            ends = _is_last(names[best]) or _ends_with(name, best)
            return _between_calls(name, names, best, calls, usual, ends=ends)
    return None


def _best(name: Int64s, names: list[str], counts: Int64s, one: int) -> int:
    """Return, of the operations that split the sequence as often as `one`, the one that all ranks choose."""
    as_often = np.flatnonzero(np.abs(counts - counts[one]) <= 1).tolist()
    few = [at for at in as_often if at == one or _is_even(np.flatnonzero(name == at))][:_MOST_TRIED]
    few = [at for at in few if _parts_alike(name, np.flatnonzero(name == at), len(names)) is not None]
    return min(few, key=lambda at: _preference(names[at]))


def _between_calls(
    name: Int64s, names: list[str], one: int, calls: Int64s, usual: Int64s, *, ends: bool, is_sure: bool = False
) -> Repetition:
    """Return the steps from or up to each call; the part before the first or after the last counts if it is a whole
    one.
    """
    bounds = calls + ends
    if ends and _holds(name[: bounds[0]], usual):
        bounds = np.append(0, bounds)
    if not ends and _holds(name[bounds[-1] :], usual):
        bounds = np.append(bounds, len(name))
    return Repetition(bounds, _words(names[one], ends=ends), is_sure)


def _holds(part: Int64s, usual: Int64s) -> bool:
    """Return whether the part contains everything in a usual one, and not much more: a whole step."""
    often = np.bincount(part, minlength=len(usual))
    return bool((often >= usual).all()) and _ALIKE * often.sum() <= usual.sum()


def _is_even(calls: Int64s) -> bool:
    apart = np.diff(calls)
    usual = np.median(apart)
    return bool((np.abs(apart - usual) <= _EVENLY * usual).mean() >= _MOST)


def _parts_alike(name: Int64s, calls: Int64s, names: int) -> Int64s | None:
    """Return the counts of operations in a usual part between two calls; None if too few parts resemble it."""
    parts = len(calls) - 1
    if parts * names > _MOST_CELLS:
        return None
    within = slice(int(calls[0]), int(calls[-1]))
    part = np.searchsorted(calls, np.arange(within.start, within.stop), "right") - 1
    often = np.bincount(part * names + name[within], minlength=parts * names).reshape(parts, names)
    usual = np.median(often, axis=0)
    alike = np.minimum(often, usual).sum(axis=1) >= _ALIKE * np.maximum(often, usual).sum(axis=1)
    lengths = np.diff(calls)
    if alike.mean() < _MOST or lengths[alike].sum() < _MOST * len(name) * parts / (parts + 2):
        return None
    return np.asarray(usual.astype(np.int64))
