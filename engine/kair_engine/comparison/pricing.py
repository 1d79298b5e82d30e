"""What changes add to the step: the runs replayed with one change after the other undone."""

from collections.abc import Sequence
from glob import escape
from itertools import pairwise

from kair_engine.comparison.changes import Change
from kair_engine.errors import InputError
from kair_engine.results.fix import Fix
from kair_engine.trace.model import Trace
from kair_engine.whatif.model import Baseline
from kair_engine.whatif.models import model_asked_of


def added_us(base: Trace, new: Trace, changes: Sequence[Change], ranks: Sequence[int]) -> list[float] | None:
    """Of each change, what it adds to the mean step (negative: saves), in µs; None where a run cannot be replayed.

    The new run is replayed with the first change undone, with the first two, and so on: what each adds is what its
    undoing saves then, so that all together add up. Operators that are gone are taken out of the base run instead.
    `ranks` are those that places of changes point to.
    """
    added = [0.0] * len(changes)
    for trace, sign, places in (
        (new, 1.0, [at for at, one in enumerate(changes) if one.pair.new is not None]),
        (base, -1.0, [at for at, one in enumerate(changes) if one.pair.new is None]),
    ):
        if not places:
            continue
        fixes = [_undone(changes[at], ranks) for at in places]
        try:
            saved = _savings(trace, fixes)
        except InputError:
            return None
        for at, of in zip(places, saved, strict=True):
            added[at] = sign * of
    return added


def _savings(trace: Trace, fixes: Sequence[Fix]) -> list[float]:
    """What each fix takes off the mean step on top of those before it, in µs."""
    named = {rank for fix in fixes for rank in fix.ranks}.intersection(trace.job.ranks)
    model = model_asked_of(trace, named=named)
    if not named <= {*model.job.ranks}:
        raise InputError("of steps that are too large to be replayed whole, these ranks cannot stand for all")
    chain = [tuple(fixes[:count]) for count in range(1, len(fixes) + 1)]
    times = model.replay([Baseline.RECORDED, *chain]).times.mean(axis=1) / 1e3
    return [before - after for before, after in pairwise(times.tolist())]


def _undone(change: Change, ranks: Sequence[int]) -> Fix:
    """The fix that brings the operator back to what it took before; one that was not there takes no time."""
    shift, one = change.shift, change.pair.any
    both = change.pair.base is not None and change.pair.new is not None
    return Fix(
        ranks=() if change.everywhere else tuple(ranks[place] for place in shift.places),
        kinds=() if one.operator is not None else ("host",),
        # Names of kernels hold signs that patterns are made of.
        operators=() if one.operator is None else (escape(one.operator),),
        scale=shift.base_us / shift.new_us if both and shift.new_us > 0 else 0.0,
    )
