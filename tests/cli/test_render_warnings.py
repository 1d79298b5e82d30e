"""Warnings: what is said of their figures."""

import pytest
from support.kept_cases import KeptCase, kept_cases

from kair_engine.ranks import Rank
from kair_engine.trace.model import KairWarning
from kair_tui.render.warnings import warning_in_words, warnings_in_words


@pytest.mark.parametrize("case", kept_cases("warnings"), ids=str)
def test_a_warning_with_figures_is_told_in_their_units(case: KeptCase) -> None:
    told = warning_in_words(KairWarning(**case.given, ranks=(Rank(3),), about="compute"))
    assert told.code == case.given["code"]
    case.assert_said(told.message)


def test_each_warning_is_told_once() -> None:
    figures = {"share_of_step": 0.5}
    twice = [KairWarning("unmatched_collectives", figures=dict(figures), ranks=(Rank(rank),)) for rank in (3, 3, 4)]
    assert len(warnings_in_words(twice[:2], twice[2:])) == 2
