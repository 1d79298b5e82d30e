"""The fixes that can be chosen on the screen, the chosen ones, and their known prices."""

from collections.abc import Sequence

from kair.app.candidates import Candidate, candidates
from kair_engine.results.evidence_kinds import Replayed
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import Fix, FixPrice, WhatifResult
from kair_tui.render.units import percent, spans
from kair_tui.tui.widgets.fix_list import ListedFix, in_order, short

Fixes = tuple[Fix, ...]
"""Fixes that belong together."""


class FixSelection:
    """The engine's proposals, typed fixes, and the chosen ones of both."""

    def __init__(self) -> None:
        self._result: WhatifResult | None = None
        self._findings: Sequence[Finding] = ()
        self._typed: Fixes = ()
        self._prices: dict[Fix, FixPrice] = {}
        self.chosen: tuple[Fixes, ...] = ()

    def about(self, result: WhatifResult) -> None:
        """Set the analysis that shows the largest costs."""
        self._result = result

    def found(self, findings: Sequence[Finding]) -> None:
        """Take triage's findings."""
        self._findings = findings

    def priced(self, fixes: Sequence[Fix], prices: Sequence[FixPrice]) -> None:
        """Take the saving of each fix by itself."""
        self._prices = dict(zip(fixes, prices, strict=False))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Return typed fixes, chosen ones that are no longer proposed, then the engine's proposals."""
        proposed = () if self._result is None else candidates(self._result, self._findings)
        known = {one.fixes for one in proposed}
        kept = dict.fromkeys([*((fix,) for fix in self._typed), *self.chosen])
        return (*(Candidate(fixes) for fixes in kept if fixes not in known), *proposed)

    @property
    def alone(self) -> list[Fix]:
        """Return the fixes that belong to no other, in the order of their prices."""
        return in_order(one.fixes[0] for one in self.candidates if len(one.fixes) == 1)

    def toggle(self, fixes: Fixes) -> None:
        """Choose a group of fixes, or drop it."""
        chosen = [one for one in self.chosen if one != fixes]
        if len(chosen) == len(self.chosen):
            chosen.append(fixes)
        # In the list's order, so that equal choices are equal questions.
        places = {one.fixes: at for at, one in enumerate(self.candidates)}
        self.chosen = tuple(sorted(chosen, key=lambda one: places.get(one, -1)))

    def add(self, fix: Fix) -> None:
        """List a typed fix, and choose it."""
        self._typed = tuple(dict.fromkeys((*self._typed, fix)))
        if (fix,) not in self.chosen:
            self.toggle((fix,))

    def listed(self) -> list[ListedFix]:
        """Return all of them with their known figures.

        Typed fixes come first, then remedies of accused ranks, of other findings, and the rest; within each, the
        largest saving comes first, or until that is known the largest cost.
        """
        found = [(self._sort(one), self._listed(one), one) for one in self.candidates]
        known = all(fix.saved_us is not None for _, fix, _ in found)
        found.sort(key=lambda one: (one[0], -((one[1].saved_us if known else one[2].costs) or 0.0)))
        return [fix for _, fix, _ in found]

    def _sort(self, candidate: Candidate) -> int:
        if candidate.finding is not None:
            return 1 if self._findings[candidate.finding - 1].ranks else 2
        return 0 if candidate.costs is None else 3

    def remedies(self) -> list[ListedFix]:
        """Return remedies that are no fixes."""
        remedies = () if self._result is None else self._result.remedies
        return [ListedFix(one.text, step_time_us=one.step_time_us, saved_us=one.saved_us) for one in remedies]

    def fields(self, fix: ListedFix) -> dict[str, object]:
        """Return the fields that a filter searches."""
        chosen = "chosen" if fix.fixes in self.chosen else ""
        return {"fix": fix.text, "origin": fix.origin, "saved_us": fix.saved_us or 0.0, "chosen": chosen}

    def _listed(self, candidate: Candidate) -> ListedFix:
        fixes, text, origin = candidate.fixes, ", ".join(map(short, candidate.fixes)), self._origin(candidate)
        if len(fixes) == 1 and (price := self._prices.get(fixes[0])) is not None:
            figures = (price.step_time_us, price.saved_us, price.throughput_gain, price.cost_per_day, price.currency)
            return ListedFix(text, fixes, origin, *figures)
        if self._result is None:
            return ListedFix(text, fixes, origin)
        # Triage has the price of several fixes that belong together.
        if candidate.finding is not None:
            finding = self._findings[candidate.finding - 1]
            saved = finding.time_lost_us_per_step
            if len(fixes) > 1:
                return ListedFix(text, fixes, origin, self._result.step_time_us - saved, saved, finding.throughput_gain)
            return ListedFix(text, fixes, origin, *priced_by_triage(finding, whole=True))
        if candidate.costs is not None:
            return ListedFix(text, fixes, origin, *_figures(self._result.step_time_us, candidate.costs))
        return ListedFix(text, fixes, origin)

    def _origin(self, candidate: Candidate) -> str:
        if candidate.finding is not None:
            return f"finding {candidate.finding}"
        if candidate.costs is not None:
            return f"costs {percent(candidate.costs)}"
        return "typed"


def priced_by_triage(finding: Finding, *, whole: bool = False) -> tuple[float, float, float] | tuple[()]:
    """Return (the step, what is saved, µs, the gain) with a finding fixed; nothing if triage replayed it not at all.

    With `whole` nothing too if some steps or ranks were replayed for all, or other findings were fixed as well.
    """
    for one in finding.evidence:
        if isinstance(one, Replayed) and one.of_samples is None and not (whole and _is_of_part(one)):
            return _figures(one.before_us, 1 - one.after_us / one.before_us)
    return ()


def _is_of_part(one: Replayed) -> bool:
    return any(figure is not None for figure in (one.replayed_steps, one.replayed_ranks, one.others_fixed))


def _figures(step_us: float, share: float) -> tuple[float, float, float]:
    """Return (the step, what is saved, µs, the gain) where a fix saves this share of the step."""
    left = max(1 - share, 1e-9)
    return step_us * left, step_us * share, 1 / left - 1


def in_words(fixes: Sequence[Fix]) -> str:
    """Return the hypothesis: `as if compute of ranks 4-7 took no longer than their peers'`."""
    if not fixes:
        return ""
    if not any(fix.is_scale for fix in fixes):
        return f"as if {', '.join(map(_what, fixes))} took no longer than among peers"
    return "as if " + ", ".join(f"{_what(fix)} took {_how_long(fix)}" for fix in fixes)


def _how_long(fix: Fix) -> str:
    if fix.even:
        return "as long as on average"
    return "no longer than among peers" if fix.scale is None else f"{fix.scale:g} times as long"


def _what(fix: Fix) -> str:
    what = " and ".join(fix.kinds) or "everything"
    who = [("rank", fix.ranks, spans(fix.ranks)), ("host", fix.hosts, ", ".join(fix.hosts))]
    who.append(("stage", fix.stages, spans(fix.stages)))
    of = [f"{noun if len(named) == 1 else noun + 's'} {names}" for noun, named, names in who if named]
    if fix.operators:
        what = ", ".join(fix.operators) + (f" ({what})" if fix.kinds else "")
    if fix.scopes:
        what += f" within {', '.join(fix.scopes)}"
    return f"{what} of {', '.join(of)}" if of else what
