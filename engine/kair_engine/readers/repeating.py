"""Steps of recordings that mark none: a sequence of operations that repeats.

A step holds everything that recurs. It ends with the optimizer's operations; without these it has the shortest length
under which the whole sequence repeats. Where one repeats but for a few operations, as real ones do, a step lies between
two calls of an operation that runs once in each, with about the same operations between any two of its calls: of
several the one that is called least often, since layers and microbatches repeat within a step, too.

Where a step is cut is told by what the operations are, not by where the recording begins: ranks that run one program
are cut alike.
"""

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.frozen import dataclass
from kair_engine.readers.kineto.classify import NameClass, name_class_of

Int64s = npt.NDArray[np.int64]
_FEWEST: Final = 3
"""Steps that must be seen before something repeats."""
_ALIKE: Final = 0.9
"""Share of a step's operations that it must have in common with the usual one."""
_MOST: Final = 0.75
"""Share of the steps that must resemble the usual one, and of all operations that must lie in such steps."""
_EVENLY: Final = 0.25
"""Of the usual number of operations between two calls: by how much most of them may differ from it."""
_MOST_TRIED: Final = 64
_MOST_CELLS: Final = 20_000_000
_OPTIMIZER: Final = re.compile(r"adam|lamb|adagrad|rmsprop|(^|[^a-z])sgd|optimi[sz]er", re.IGNORECASE)
_NEXT_TOKEN: Final = re.compile(r"argmax|multinomial|sampling|sampler|top_?[kp]([^a-z]|$)", re.IGNORECASE)
_COLLECTIVES: Final = (NameClass.DEVICE_COLLECTIVE, NameClass.HOST_COLLECTIVE, NameClass.COLLECTIVE_CALL)


@dataclass(frozen=True)
class Repetition:
    """Where steps begin in a sequence, and where the last one ends: places in it, the last one at most its length."""

    bounds: Int64s
    told_by: str
    is_sure: bool = False
    """Whether an optimizer tells it, which works once a step."""

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1


def repetition(name: Int64s, texts: list[str]) -> Repetition | None:
    """The steps of the sequence `name` (codes, positions in `texts`), or None where nothing repeats."""
    codes, dense = np.unique(name, return_inverse=True)
    if len(codes) < 2 or len(name) < _FEWEST * len(codes):
        return None
    names = [texts[code] for code in codes.tolist()]
    return _after_optimizers(dense, names) or _exactly(dense, names) or _about(dense, names)


def _after_optimizers(name: Int64s, names: list[str]) -> Repetition | None:
    """From the last operation of an optimizer to that of the next: a loop may log every few steps, and so repeat."""
    counts = np.bincount(name)
    optimizers = [at for at, text in enumerate(names) if _OPTIMIZER.search(text) and counts[at] >= _FEWEST]
    for one in sorted(optimizers, key=lambda at: (counts[at], names[at])):
        calls = np.flatnonzero(name == one)
        apart = np.diff(calls)
        # It may be called for each part of the parameters.
        calls = calls[np.append(2 * apart > apart.max(), True)]
        if len(calls) >= _FEWEST and (usual := _parts_alike(name, calls, len(names))) is not None:
            return _between(name, names, one, calls, usual, ends=True, is_sure=True)
    return None


def _exactly(name: Int64s, names: list[str]) -> Repetition | None:
    """The repetition of a sequence that is the same again and again."""
    counts = np.bincount(name)
    calls = np.flatnonzero(name == counts.argmin())
    for often in range(1, min(len(calls) - 1, _MOST_TRIED) + 1):
        period = int(calls[often] - calls[0])
        if _FEWEST * period > len(name):
            return None
        if (calls[often:] - calls[:-often] == period).all() and np.array_equal(name[period:], name[:-period]):
            return _cut(name, names, period)
    return None


def _cut(name: Int64s, names: list[str], period: int) -> Repetition:
    """The whole periods, each from or up to one operation."""
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
    """Of operations that run as often, which of them tells: the first of these, on all ranks."""
    signs = (_OPTIMIZER.search(name), _NEXT_TOKEN.search(name), name_class_of(name) in _COLLECTIVES)
    return next((at for at, sign in enumerate(signs) if sign), len(signs)), name


def _is_last(name: str) -> bool:
    """Whether a step ends with it: an optimizer's work, the choice of a token, or what all ranks leave at once."""
    return _preference(name)[0] < 3


def _ends_with(name: Int64s, one: int) -> bool:
    """Whether a recording of whole steps shows that they end with the operation `one`, and do not begin with it."""
    return bool(name[-1] == one != name[0])


def _words(name: str, *, ends: bool) -> str:
    return f"what repeats {'up to' if ends else 'from'} {name}{'' if ends else ' on'}"


def _about(name: Int64s, names: list[str]) -> Repetition | None:
    """The repetition of a sequence that is about the same again and again."""
    counts = np.bincount(name)
    possible = np.flatnonzero((counts > _FEWEST) & (2 * counts <= len(name)))
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
            return _between(name, names, best, calls, usual, ends=ends)
    return None


def _best(name: Int64s, names: list[str], counts: Int64s, one: int) -> int:
    """Of the operations that part the sequence as often as `one` that which all ranks choose, wherever cut."""
    as_often = np.flatnonzero(np.abs(counts - counts[one]) <= 1).tolist()
    few = [at for at in as_often if at == one or _is_even(np.flatnonzero(name == at))][:_MOST_TRIED]
    few = [at for at in few if _parts_alike(name, np.flatnonzero(name == at), len(names)) is not None]
    return min(few, key=lambda at: _preference(names[at]))


def _between(
    name: Int64s, names: list[str], one: int, calls: Int64s, usual: Int64s, *, ends: bool, is_sure: bool = False
) -> Repetition:
    """The steps from or up to each call, with what is before the first or after the last where that is a whole one."""
    bounds = calls + ends
    if ends and _holds(name[: bounds[0]], usual):
        bounds = np.append(0, bounds)
    if not ends and _holds(name[bounds[-1] :], usual):
        bounds = np.append(bounds, len(name))
    return Repetition(bounds, _words(names[one], ends=ends), is_sure)


def _holds(part: Int64s, usual: Int64s) -> bool:
    """Whether the part holds all that is in a usual one, and not much more: a whole step."""
    often = np.bincount(part, minlength=len(usual))
    return bool((often >= usual).all()) and _ALIKE * often.sum() <= usual.sum()


def _is_even(calls: Int64s) -> bool:
    apart = np.diff(calls)
    usual = np.median(apart)
    return bool((np.abs(apart - usual) <= _EVENLY * usual).mean() >= _MOST)


def _parts_alike(name: Int64s, calls: Int64s, names: int) -> Int64s | None:
    """How often a usual part between two calls has each operation; None where too little lies in parts like that."""
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
