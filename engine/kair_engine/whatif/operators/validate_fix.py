"""Checks that a recording has what a fix asks for; says what it has instead."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from kair_engine.arrays import Bools
from kair_engine.causes import FixKind
from kair_engine.errors import UsageError
from kair_engine.results.fix import STOPS, Fix
from kair_engine.trace.columns import Columns
from kair_engine.trace.counting import count_operations
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import STEP_SCOPE
from kair_engine.whatif.fixes import fix_text
from kair_engine.whatif.prices import nothing_fits

_SHOWN = 8
_KINDS: dict[FixKind, tuple[str, ...]] = {
    "compute": ("compute", "memory"),
    "input": ("input",),
    "communication": ("collective", "send", "recv"),
    "gc": ("gc",),
}
"""A fix's kind → the operations' kinds; delays of the host are of every operation."""


Present = Mapping[tuple[str, str, str], int]
"""(name, kind, phase) of operations → how many there are, the most frequent first."""


def present(trace: Trace) -> Present:
    """What operations the ranks have in the chosen steps."""
    return _counted(trace, trace.job.ranks)


def validate_fix(trace: Trace, fix: Fix, of_all: Callable[[], Present]) -> None:
    """Raises UsageError, with what there is instead, where no operation of the chosen steps fits the fix.

    `of_all` tells what is present on all ranks, where that is asked for.
    """
    job, layout = trace.job, trace.job.layout
    stage_of = layout.pipeline_stage if layout is not None else {}
    if fix.stages and not stage_of:
        raise UsageError(
            f"{fix_text(fix)}: the recording does not tell which ranks make up a pipeline stage",
            "name the stage's ranks instead: rank=0-7 (stages are known where the profiler notes pipeline groups)",
        )
    known: tuple[tuple[str, Collection[int | str], Iterable[int | str]], ...] = (
        ("ranks", fix.ranks, job.ranks),
        ("hosts", fix.hosts, job.hosts.values()),
        ("stages", fix.stages, stage_of.values()),
    )
    for what, asked, there in known:
        if asked and not set(asked) & set(there):
            raise nothing_fits(fix, f"the {what} are {_listed(there)}" if set(there) else f"the {what} are not known")
    chosen = [
        rank
        for rank in job.ranks
        if (not fix.ranks or rank in fix.ranks)
        and (not fix.hosts or job.hosts.get(rank) in fix.hosts)
        and (not fix.stages or stage_of.get(rank) in fix.stages)
    ]
    if fix.scopes:
        names = scope_names(trace)
        if not any(map(fix.within, names)):
            raise nothing_fits(fix, f"there are the scopes {_listed(names)}" if names else "no scopes are recorded")
    counts = of_all() if len(chosen) == len(job.ranks) else _counted(trace, chosen)
    kinds, names = _fitting(counts, fix)
    if not kinds:
        raise nothing_fits(fix, f"there are {_listed(names)}" if fix.operators and names else None)


def scope_names(trace: Trace) -> list[str]:
    """The names of the scopes that were annotated in the chosen steps, the most frequent first."""
    names = count_operations(trace, ("name",), lambda rows: rows.is_any("kind", ("scope",)), also=("kind",))
    return [name for (name,) in names if name != STEP_SCOPE]


def _counted(trace: Trace, ranks: Sequence[int]) -> Present:
    def of_ranks(rows: Columns) -> Bools:
        return np.isin(rows.of["rank"], ranks) & ~rows.is_any("kind", ("scope",))

    counts = count_operations(trace, ("name", "kind", "phase"), of_ranks)
    return {(name, kind, phase): number for (name, kind, phase), number in counts.items()}


def _fitting(there: Present, fix: Fix) -> tuple[set[str], list[str]]:
    """(the kinds of the operations that fit, the names of the most frequent operators of the fix's kinds)."""
    of_kinds = {kind for one in fix.kinds for kind in _KINDS.get(one, ())}
    counts: Counter[tuple[str, str]] = Counter()
    for (name, kind, phase), number in there.items():
        any_kind = not fix.kinds or {"host", STOPS} & set(fix.kinds)
        if any_kind or kind in of_kinds or ("input" in fix.kinds and phase == "input"):
            counts[name, kind] += number
    order = sorted(counts, key=lambda texts: (-counts[texts], texts))
    return {kind for name, kind in order if fix.named(name)}, list(dict.fromkeys(name for name, _ in order))


def _listed(values: Iterable[int | str]) -> str:
    """The first few, numbers as spans."""
    ordered = list(dict.fromkeys(values))
    numbers = [value for value in ordered if isinstance(value, int)]
    if numbers and len(numbers) == len(ordered):
        low, high = min(numbers), max(numbers)
        if len(numbers) == high - low + 1 > 1:
            return f"{low}-{high}"
        ordered = sorted(numbers)
    shown = ", ".join(str(value) for value in ordered[:_SHOWN])
    return f"{shown} …" if len(ordered) > _SHOWN else shown
