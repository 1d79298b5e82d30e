"""Ranks that were not compared; distances of every two ranks, as figures of few and shades of many."""

import pytest
from support.kept_cases import assert_kept

from kair_engine.ranks import Rank
from kair_engine.results.localize import JobPattern, LocalizeResult, RankScore
from kair_tui.render.answer import PageOptions
from kair_tui.render.localize import VIEW, figures_in_words
from kair_tui.render.page import Page


def lines(ranks: int, **look: object) -> list[str]:
    """Rank 3 is far from all others, which are alike."""
    matrix = tuple(tuple(0.0 if a == b else 0.9 if 3 in (a, b) else 0.1 for b in range(ranks)) for a in range(ranks))
    scores = tuple(RankScore(Rank(rank), None, "all", 0.0, None, False, {}) for rank in range(ranks))
    page = Page(PageOptions(width=100, **look))  # type: ignore[arg-type]
    assert VIEW.body is not None
    VIEW.body(LocalizeResult("paper", scores, (), (), (), matrix, (0,), ()), page)
    text = page.getvalue()
    return text[text.index("distance of every two ranks") :].splitlines()[1:]


def test_few_ranks_have_figures() -> None:
    assert lines(4)[3].split() == ["0.9000", "0.9000", "0.9000", "0.0000"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [17, 200, 1000])
def test_many_ranks_are_shaded_within_the_width(ranks: int) -> None:
    shaded = lines(ranks, ascii_only=True)
    assert max(map(len, shaded)) <= 100
    rows = [line for line in shaded[:-1] if line]
    assert len(rows) <= 64
    # The far one is dark in its own row and in its own column of all others.
    assert max(row.count("@") for row in rows) > 10
    assert all("@" in row for row in rows)
    assert "from 0 to 0.9" in shaded[-1]


def test_a_rank_that_was_not_compared_is_said_to_be_none() -> None:
    scores = (
        RankScore(Rank(2), None, "all", 9.0, 0.001, True, {}, compared=False),
        RankScore(Rank(0), None, "all", 1.0, None, False, {}),
        RankScore(Rank(1), None, "all", 0.0, None, False, {}, compared=False),
    )
    result = LocalizeResult("robust", scores, (), (), (), None, (0,), ())
    assert VIEW.headline(result).endswith("; rank 2 could not be compared with its peers")
    page = Page(PageOptions(width=100))
    assert VIEW.body is not None
    VIEW.body(result, page)
    assert [line.count("not compared") for line in page.getvalue().splitlines() if line.strip()[:1].isdigit()] == [
        1,
        0,
        1,
    ]


PATTERNS = {
    "positions": JobPattern(
        "position_imbalance", (), (3,), 7580.0, {"0": 2510.0, "1": 7540.0, "2": 12600.0}, "x", "mesh_cp"
    ),
    "turns": JobPattern("uneven_work", (), (3,), 1.0, {"ranks": 5.0, "steps": 8.0}),
    "a period": JobPattern("periodic_pause", (), (3,), 1.0, {"delays": 3.0, "every": 8.0}),
    "no period": JobPattern("periodic_pause", (), (3,), 1.0, {"delays": 3.0, "every": 0.0}),
    "a rate": JobPattern("host", (), (3,), 1.0, {"delays": 1.0, "rate": 0.01}),
}


def test_every_figure_of_a_pattern_has_words() -> None:
    assert_kept("patterns", {name: figures_in_words(pattern) for name, pattern in PATTERNS.items()})
