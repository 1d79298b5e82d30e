"""Kinds of evidence: each has a description and a sentence that fits its figures, and is read back as it was kept."""

from typing import Any

import msgspec
import pytest

from kair_engine.ranks import Rank
from kair_engine.results.blame import RootCause
from kair_engine.results.evidence_kinds import KINDS, Evidence, ShownBy
from kair_tui.cli.registry import COMMANDS
from kair_tui.commands.schema import schema_of
from kair_tui.render.sentences import sentence_of

CAUSE = RootCause(
    Rank(1), "aten::mm", "compute", is_edge=False, blamed_us=12.0, share=0.5, steps=(3,), synchronisations=3
)


def made(kind: type[Evidence], ranks: int, *, whole: bool) -> Evidence:
    """Evidence of a kind, with all figures it can have or only those that it must have."""
    figures = kind.required() if not whole else {*kind.figure_names}
    values: dict[str, Any] = {name: number + 1.5 for number, name in enumerate(kind.figure_names) if name in figures}
    about = "A100; peers' H100" if kind.kind == "device_models" else "compute"
    if hasattr(kind, "group"):
        about = "send of process group tp"
    of = tuple(Rank(rank) for rank in range(ranks))
    evidence = kind(**values, shown_by=ShownBy("localize"), ranks=of, about=about, root_causes=(CAUSE,))
    spent = {"0": 1.5, "1": 2.5} if kind.kind == "uneven_positions" else {}
    return evidence.changed(figures=spent | evidence.figures)


@pytest.mark.parametrize("kind", KINDS.values(), ids=[*KINDS])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("whole", [True, False])
def test_a_kind_says_something_that_fits_its_figures(kind: type[Evidence], ranks: int, whole: bool) -> None:
    evidence = made(kind, ranks, whole=whole)
    if kind.kind in {"no_core", "profiler", "than_before", "whole_device"} and not whole:
        return  # these have some figures that are missing only with others, or ranks
    said = sentence_of(evidence)
    assert said == said.strip()
    assert not {"{", "}", "None"} & {*said, *said.split()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=[*KINDS])
def test_a_kind_is_read_back_as_it_was_kept(kind: type[Evidence]) -> None:
    for evidence in (made(kind, 2, whole=True), made(kind, 1, whole=False)):
        kept = msgspec.json.encode(evidence)
        assert msgspec.json.decode(kept, type=Evidence) == evidence
        assert evidence.kind == kind.kind


@pytest.mark.parametrize("kind", KINDS.values(), ids=[*KINDS])
def test_a_kind_has_a_description_with_all_its_figures(kind: type[Evidence]) -> None:
    text = kind.description()
    assert text.endswith(".")
    assert "Figures:" in text or not made(kind, 1, whole=True).figures
    if kind.kind not in {"uneven_positions", "device_models"}:
        missing = [name for name in made(kind, 1, whole=True).figures if name not in text]
        assert not missing


def test_the_schema_tells_each_kind() -> None:
    schema = schema_of(next(entry for entry in COMMANDS if entry.name == "triage"))
    listed = schema["$defs"]["Evidence"]["properties"]["kind"]["oneOf"]
    assert [(one["const"], one["description"]) for one in listed] == [
        (name, kind.description()) for name, kind in KINDS.items()
    ]
