"""The table of the screens: any number of rows, of which only those in view are looked at."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pytest
from support.cli_samples import HOSTILE
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from kair_engine.errors import UsageError
from kair_tui.render.answer import ALARM, Column, Styled
from kair_tui.render.terminal import Look
from kair_tui.tui.filtering import Ordering, ordered, parse_filter
from kair_tui.tui.widgets.table import AT_ONCE, Table


@dataclass(frozen=True)
class Call:
    name: str
    phase: str | None
    us: float | None


COLUMNS = (
    Column[Call]("name", "operator", lambda row: row.name, align="left", weight=9),
    Column[Call]("phase", "phase", lambda row: row.phase or "–", align="left", weight=3),
    Column[Call]("us", "µs", lambda row: Styled(f"{row.us:g}", ALARM) if row.us else "–", weight=8),
    Column[Call]("", "detail", lambda _: "only with -o wide", detail=True, weight=8),
)
CALLS = (
    Call("gemm", "forward", 30.0),
    Call("add", None, None),
    Call("relu", "backward", 4.5),
    Call("add", "forward", 20.0),
)
FIELDS = ("name", "phase", "us")


class Counted(Sequence[Call]):
    """Rows made when they are looked at."""

    def __init__(self, count: int) -> None:
        self.count, self.looked_at = count, set[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Call:  # type: ignore[override]
        self.looked_at.add(at)
        return Call(f"op{at}", "forward", float(at + 1))


class Shown(App[None]):
    """A screen with nothing but the table."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._table: Table[Call] = Table(look, COLUMNS, id="table")
        self.is_ordered = asyncio.Event()
        self.chosen: list[Call] = []
        self.pilot: Pilot[None]

    def compose(self) -> ComposeResult:
        yield self._table

    def on_table_ordered(self) -> None:
        self.is_ordered.set()

    def on_table_chosen(self, message: Table.Chosen) -> None:
        self.chosen.append(message.table.chosen)


Wanted = Callable[[Table[Call], Shown], Awaitable[None]]


def on_screen(rows: Sequence[Call], then: Wanted, *, look: Look | None = None, size: tuple[int, int] = (40, 6)) -> None:
    """Shows a table of `rows` and runs `then` with it."""

    async def run() -> None:
        app = Shown(look or Look())
        async with app.run_test(size=size) as pilot:
            table = app.query_one("#table", Table)
            table.focus()
            table.show(rows, empty="no calls")
            await pilot.pause()
            app.pilot = pilot
            await then(table, app)

    asyncio.run(run())


def lines(table: Table[Call]) -> list[str]:
    return [strip.text.rstrip() for strip in table.render_lines(table.size.region)]


def test_a_table_shows_its_header_and_points_at_a_row() -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        assert lines(table) == [
            "  operator  phase      µs",
            "▸ gemm      forward    30",
            "  add       –           –",
            "  relu      backward  4.5",
            "  add       forward    20",
            "",
        ]
        table.action_move(1)
        assert table.chosen == CALLS[1]
        assert [line[0] for line in lines(table)[1:5]] == [" ", "▸", " ", " "]

    on_screen(CALLS, check)


def test_of_a_million_rows_only_those_in_view_are_looked_at() -> None:
    rows = Counted(1_000_000)

    async def check(table: Table[Call], _: Shown) -> None:
        table.action_page(1)
        table.action_edge(1)
        assert [line.split()[1] for line in lines(table)[-1:]] == ["op999999"]
        table.action_page(-1)
        assert table.chosen == Call("op999995", "forward", 999996.0)
        assert len(rows.looked_at) < 1000

    on_screen(rows, check)


def test_the_cursor_stays_in_view() -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        for by in (3, 5, -2, 40, -1, -60):
            table.action_move(by)
            assert [line for line in lines(table)[1:] if line.startswith("▸")], by
        assert table.at == 0
        table.action_edge(1)
        table.action_edge(-1)
        assert lines(table)[1].startswith("▸ op0 ")

    on_screen(Counted(50), check)


def test_rows_are_sorted_by_a_column_the_unknown_last() -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        table.sort("us", descending=True)
        assert [table.row(at).us for at in range(4)] == [30, 20, 4.5, None]
        assert lines(table)[0].endswith("µs ↓")
        table.sort("us")
        assert [table.row(at).us for at in range(4)] == [4.5, 20, 30, None]
        table.sort("name")
        assert [table.row(at) for at in range(4)] == [CALLS[1], CALLS[3], CALLS[0], CALLS[2]]
        assert lines(table)[0].startswith("  operator ↑")

    on_screen(CALLS, check)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("add", [1, 3]),
        ("!add", [0, 2]),
        ("ADD forward", [3]),
        ("us:>20", [0]),
        ("us:4-20", [2, 3]),
        ("phase:ward !phase:back", [0, 3]),
        ("^g|^r", [0, 2]),
        ("nothing", []),
        # Fractions are figures, not text to search in.
        ("30", []),
        ("", [0, 1, 2, 3]),
    ],
)
def test_rows_are_filtered_by_words_and_fields(typed: str, found: list[int]) -> None:
    places = ordered(CALLS, FIELDS, Ordering(parse_filter(typed, FIELDS)))
    assert places is not None
    assert places.tolist() == found


def test_a_filter_and_an_order_hold_together_and_stay_for_new_rows() -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        table.filter(parse_filter("add", FIELDS))
        table.sort("us")
        assert [table.row(at) for at in range(table.count)] == [CALLS[3], CALLS[1]]
        assert (table.count, table.total) == (2, 4)
        table.show((*CALLS, Call("add", None, 1.0)))
        assert [table.row(at).us for at in range(table.count)] == [1, 20, None]
        table.filter(parse_filter("nothing", FIELDS))
        assert (table.count, table.chosen) == (0, None)

    on_screen(CALLS, check)


def test_what_is_no_filter_says_so() -> None:
    with pytest.raises(UsageError, match="no field 'host'"):
        parse_filter("host:a", FIELDS)


def test_many_rows_are_ordered_by_a_thread_and_the_last_wish_counts() -> None:
    rows = Counted(AT_ONCE + 1)

    async def check(table: Table[Call], app: Shown) -> None:
        app.is_ordered.clear()
        table.sort("name")
        table.sort("us", descending=True)
        assert table.row(0).us == 1
        await app.is_ordered.wait()
        assert [table.row(at).us for at in range(3)] == [AT_ONCE + 1, AT_ONCE, AT_ONCE - 1]
        app.is_ordered.clear()
        table.filter(parse_filter("us:<3", FIELDS))
        await app.is_ordered.wait()
        assert [table.row(at).us for at in range(table.count)] == [2, 1]

    on_screen(rows, check)


def test_names_in_traces_cannot_touch_the_screen() -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        text = "\n".join(lines(table))
        assert not {"\x1b", "\x07", "\u202e", "\x9b", "\r"} & set(text)
        assert "[red]evil" in text

    on_screen([Call(HOSTILE, HOSTILE[:9], 1.0)], check, size=(120, 4))


def test_in_ascii_every_sign_is_ascii() -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        table.sort("us", descending=True)
        assert "".join(lines(table)).isascii()
        assert lines(table)[0].endswith("us v")
        assert lines(table)[1].startswith("> ")

    on_screen((*CALLS, Call(HOSTILE, None, 2.0)), check, look=Look(ascii_only=True))


def test_a_longer_figure_further_down_is_never_cut() -> None:
    rows = [Call("op", "forward", 1.0)] * 300 + [Call("op", "forward", 123456.0)]

    async def check(table: Table[Call], _: Shown) -> None:
        table.action_edge(1)
        assert lines(table)[-1].split() == ["▸", "op", "forward", "123456"]

    on_screen(rows, check)


def test_narrow_screens_lose_the_lightest_column_then_the_middle_of_names() -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        assert lines(table)[:2] == ["  operator                        µs", "▸ kernel_kernel_k…el_kernel_left   1"]
        assert lines(table)[2] == "  kernel_kernel_k…l_kernel_right   2"

    calls = [Call(f"{'kernel_' * 9}{side}", "backward", at) for side, at in (("left", 1.0), ("right", 2.0))]
    on_screen(calls, check, size=(36, 4))


@pytest.mark.parametrize(("width", "shown"), [(52, True), (51, False)])
def test_details_are_shown_where_no_name_is_cut_for_them(width: int, shown: bool) -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        assert lines(table)[1].startswith("▸ a_name_of_20_letters")
        assert ("only with -o wide" in lines(table)[1]) == shown

    on_screen([Call("a_name_of_20_letters", None, 1.0)], check, size=(width, 4))


def test_an_empty_table_says_why() -> None:
    async def check(table: Table[Call], _: Shown) -> None:
        assert lines(table)[1] == "  no calls"
        table.action_choose()
        table.action_move(1)

    on_screen([], check)


def test_enter_or_a_click_on_the_row_that_is_pointed_at_takes_it() -> None:
    async def check(table: Table[Call], app: Shown) -> None:
        table.action_move(2)
        await app.pilot.press("enter")
        await app.pilot.click("#table", offset=(3, 4))
        await app.pilot.click("#table", offset=(3, 4))
        await app.pilot.click("#table", offset=(3, 0))
        assert app.chosen == [CALLS[2], CALLS[3]]

    on_screen(CALLS, check)
