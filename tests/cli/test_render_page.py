"""Tables and lines as a terminal of a given width gets them."""

from support.cli_samples import HOSTILE, KERNEL, pinpoint

from kair_tui.render.answer import PageOptions
from kair_tui.render.page import Page
from kair_tui.render.pinpoint import COLUMNS


def _table(**look: object) -> list[str]:
    page = Page(PageOptions(**look))  # type: ignore[arg-type]
    page.table(COLUMNS, pinpoint().outliers)
    return page.getvalue().splitlines()


def test_numbers_are_aligned_to_the_right_and_names_to_the_left() -> None:
    header, _, row = _table()
    assert row.index("at::native") == header.index("operator")
    assert row.index("5.40 ms") + len("5.40 ms") == header.index("duration") + len("duration")


def test_a_narrow_terminal_loses_the_least_important_columns_first() -> None:
    assert _table(width=200)[0].split() == [
        "step",
        "operator",
        "phase",
        "#",
        "start",
        "duration",
        "expected",
        "×",
        "score",
    ]
    narrow = _table(width=50)
    assert narrow[0].split() == ["operator", "duration", "score"]
    assert all(len(line) <= 50 for line in narrow)


def test_no_figure_is_ever_cut() -> None:
    for width in range(45, 120):
        assert "5.40 ms" in _table(width=width)[2]


def test_a_wide_table_keeps_everything_whatever_the_width() -> None:
    header, _, row = _table(width=80, wide=True)
    assert KERNEL in row
    assert "duration z" in header


def test_rows_beyond_the_limit_are_counted() -> None:
    page = Page(PageOptions())
    page.table(COLUMNS, pinpoint().outliers * 5, limit=2)
    assert page.getvalue().splitlines()[-1] == "… and 3 more (-o wide shows all)"


def test_sentences_wrap_under_themselves() -> None:
    page = Page(PageOptions(width=40))
    page.bullet("rank 1 spends far more time than its peers in this operator")
    page.fact("hosts", "node0 node1 node2 node3 node4 node5")
    assert page.getvalue().splitlines() == [
        "   • rank 1 spends far more time than",
        "     its peers in this operator",
        "hosts         node0 node1 node2 node3",
        "              node4 node5",
    ]


def test_nothing_is_interpreted() -> None:
    page = Page(PageOptions(color=True))
    page.line(HOSTILE)
    page.tree(HOSTILE, lambda root, safe: root.add(safe("[bold]x[/bold] :smile: https://x.y 'quoted' 12")))  # type: ignore[arg-type]
    text = page.getvalue()
    assert "[red]evil[/red]" in text
    assert ":smile:" in text
    assert "\x1b[2J" not in text
    assert "[bold]x[/bold] :smile: https://x.y 'quoted' 12" in text
