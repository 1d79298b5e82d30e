"""Evidence of a kind by its name, from figures as documents have them."""

from collections.abc import Mapping
from typing import Any

from kair_engine.ranks import Rank
from kair_engine.results.blame import RootCause
from kair_engine.results.evidence_kinds import KINDS, Evidence, ShownBy


def evidence_of(
    kind: str,
    figures: Mapping[str, Any] | None = None,
    shown_by: ShownBy | None = None,
    ranks: tuple[Rank, ...] = (),
    about: str | None = None,
    root_causes: tuple[RootCause, ...] = (),
) -> Evidence:
    """Make it; figures that it must have and that nobody gives are 0."""
    of, given = KINDS[kind], dict(figures or {})
    values = {name: given.pop(of.figure_names[name], 0) for name in of.required()}
    if "ranks" in given:
        given["ranks_"] = given.pop("ranks")
    return of(**values, **given, shown_by=shown_by, ranks=ranks, about=about, root_causes=root_causes)
