"""The answer of `whatif`: how fast the job would be without its stragglers, and what each part costs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kair.app.question import Given
from kair_engine.causes import ASKED_REMEDIES, RemedyName
from kair_engine.errors import UsageError
from kair_engine.ranks import Rank
from kair_engine.results.whatif import Fix, PricedRanks, WhatifResult

if TYPE_CHECKING:
    from kair_engine.trace.model import Trace
    from kair_engine.whatif.analysis import Questions
    from kair_engine.whatif.model import Model


def whatif(
    given: Given,
    *,
    fix: Sequence[str] = (),
    scale: Sequence[str] = (),
    of_rank: Rank | None = None,
    gpu_cost: float | None = None,
    only_fixes: bool = False,
    remedy: Sequence[str] = (),
) -> WhatifResult:
    """Return the prices, and keep the job's model for the next question. Raises UsageError for an invalid fix."""
    from kair_engine.whatif.analysis import leads, price_fixes, whatif_of, with_absorbed

    texts, fixes = _fixes(fix, scale, of_rank)
    remedies = _remedies(remedy)
    if only_fixes and not fixes:
        raise UsageError("there is no fix to price", "name one: --fix rank=3, or --scale op='flash*':0.5")
    trace, kept = given.trace, _kept(given, fixes)
    if kept is None:
        from kair_engine.whatif.analysis import model_asked_of

        model: Model = model_asked_of(trace, named=_named(given, fixes))
        result = (price_fixes if only_fixes else whatif_of)(model, fixes, gpu_cost=gpu_cost)
    else:
        model = kept.model
        result = price_fixes(model, fixes, gpu_cost=gpu_cost) if only_fixes else kept.whatif(fixes, gpu_cost=gpu_cost)
    if not (texts or remedies or only_fixes):
        result = replace(result, measured=_measured(trace))
    result = replace(result, remedies=(*result.remedies, *model.price_remedies(remedies)))
    return with_absorbed(_as_typed(result, texts), fixes, trace.job, lambda: leads(trace))


def _measured(trace: "Trace") -> tuple[PricedRanks, ...]:
    """Return what ranks of a captured job cost by all of its recorded steps, where these show what they grew by."""
    from kair.app.step_history import history_of_steps

    if (history := history_of_steps(trace)) is None:
        return ()
    from kair_engine.triage.history.analysis import judge

    found = (one for one in judge(history, trace.job)[0] if one.priced_by == "growth")
    return tuple(PricedRanks(one.ranks, one.time_lost_us_per_step, one.since, one.until) for one in found)


def asked_model(given: Given, fix: Sequence[str], scale: Sequence[str], of_rank: Rank | None) -> "Model":
    """Return the job's model, from memory if it is kept there. Raises UsageError for an invalid fix."""
    from kair_engine.whatif.analysis import model_asked_of

    _, fixes = _fixes(fix, scale, of_rank)
    kept = _kept(given, fixes)
    return model_asked_of(given.trace, named=_named(given, fixes)) if kept is None else kept.model


def _fixes(fix: Sequence[str], scale: Sequence[str], of_rank: Rank | None) -> tuple[list[str], list[Fix]]:
    from kair_engine.results.fixes import parse_fix, parse_scale

    if of_rank is not None:
        fix = (*fix, f"rank={of_rank}")
    return [*fix, *scale], [*map(parse_fix, fix), *map(parse_scale, scale)]


def _remedies(texts: Sequence[str]) -> list[RemedyName]:
    """Return the remedies, each once. Raises UsageError for an unknown name."""
    by_text: dict[str, RemedyName] = {name.replace("_", "-"): name for name in ASKED_REMEDIES}
    found = []
    for text in texts:
        name = by_text.get(text.replace("_", "-"))
        if name is None:
            raise UsageError(f"{text} is no remedy", f"one of {', '.join(by_text)}")
        found.append(name)
    return list(dict.fromkeys(found))


def _named(given: Given, fixes: Sequence[Fix]) -> set[int]:
    return {rank for fix in fixes for rank in fix.ranks or ()}.intersection(given.trace.job.ranks)


def _kept(given: Given, fixes: Sequence[Fix]) -> "Questions | None":
    """Return the model that stays in memory, made now where it is not there; None where nothing stays."""
    if given.cache is None:
        return None
    from kair_engine.whatif.analysis import Questions, model_asked_of

    trace, named = given.trace, _named(given, fixes)
    return given.cache.of(
        trace.steps,
        lambda: Questions(model_asked_of(trace, keep=True, named=named)),
        lambda known: named <= {*known.model.job.ranks},
    )


def _as_typed(result: WhatifResult, texts: Sequence[str]) -> WhatifResult:
    """Name fixes by what was typed; their price together has its own name."""
    typed = [replace(price, fix=text) for price, text in zip(result.fixes, texts, strict=False)]
    return replace(result, fixes=(*typed, *result.fixes[len(typed) :]))
