"""The time-frequency screen: pictures of it, its figures beside the command's, and what its keys do."""

import shlex
from collections import Counter
from collections.abc import Iterator

import pytest
from support.cli_samples import printed
from support.places import SAMPLES
from support.screen_text import (
    go,
    opened,
    played,
    screen_lines,
    screen_text,
    type_line,
    until,
)
from textual.app import App
from textual.pilot import Pilot

from kair_engine.results.views import FrequencyResult, RankCounts
from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.widgets.frequency_heat import FrequencyHeat
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.lines import Piece

INPUT = str(SAMPLES / "slow_input")
STALL = str(SAMPLES / "intermittent_stall")
HOST = str(SAMPLES / "slow_host")
BUSY = str(SAMPLES / "busy_host")


pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


async def shown(app: KairApp, pilot: Pilot[int], *keys: str) -> tuple[ViewScreen, FrequencyHeat]:
    screen = await go(app, pilot, *keys)
    return screen, screen.query_one(FrequencyHeat)


@played
async def test_its_figures_are_the_commands() -> None:
    async with opened(STALL, size=(160, 50)) as (app, pilot):
        screen, heat = await shown(app, pilot, "F")
        answer = printed(screen.commands()[0])
        low = Counter(window["rank"] for window in answer["degraded"])
        rows = [line.split() for line in screen_lines(app) if line.endswith("4,440")]
        assert [(int(row[0]), int(row[-2]), row[-1]) for row in rows] == [
            (row["rank"], low[row["rank"]], f"{sum(row['counts']):,}") for row in answer["counts"]
        ]
        for window in answer["degraded"]:
            said = app.screen.query_one(StatusLine).text
            assert f"rank {window['rank']} · window {window['window']} at" in said
            assert f"{window['state']}: {window['count']} of {window['expected']:.1f}" in said
            assert heat.counted == window["count"]
            heat.action_next_degraded(1)
            await pilot.pause()


@played
async def test_one_operator_or_phase_is_chosen_by_typing_a_part_of_its_name() -> None:
    async with opened(INPUT) as (app, pilot):
        screen, heat = await shown(app, pilot, "F")
        await pilot.press("c")
        await until(pilot, lambda: app.screen is not screen)
        await pilot.press(*"enum")
        await shown(app, pilot, "enter")
        operator = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        assert screen.commands()[0] == shlex.join(["kair", "frequency", INPUT, "--operator", operator])
        assert "overview › frequency enumerate" in screen_text(app)
        before = printed(screen.commands()[0])
        assert sum(before["counts"][0]["counts"]) == 12
        assert before["operator"] == operator
        heat.focus()
        await pilot.press("c", *"backw")
        await shown(app, pilot, "enter")
        assert screen.commands()[0] == f"kair frequency {INPUT} --phase backward"
        assert printed(screen.commands()[0])["operator"] == "backward"
        heat.focus()
        await pilot.press("c", *"optimizer.step")
        await shown(app, pilot, "enter")
        scope = shlex.split(screen.commands()[0])[-1]
        assert shlex.split(screen.commands()[0])[-2] == "--scope"
        assert scope.startswith("Optimizer.step#")
        assert printed(screen.commands()[0])["operator"] == scope


@played
async def test_windows_become_more_and_fewer_and_the_cursor_stays_at_its_time() -> None:
    async with opened(STALL, size=(160, 50)) as (app, pilot):
        screen, heat = await shown(app, pilot, "F")
        assert (heat.rank, heat.windows) == (3, range(10, 11))
        await shown(app, pilot, "minus")
        assert screen.commands()[0] == f"kair frequency {STALL} --windows 50"
        assert (heat.rank, heat.windows) == (3, range(5, 6))
        assert "50 windows of" in screen_text(app)
        await shown(app, pilot, "plus", "plus")
        assert screen.commands()[0] == f"kair frequency {STALL} --windows 200"
        assert 20 in heat.windows


@played
async def test_where_windows_outnumber_columns_a_bar_is_of_several() -> None:
    async with opened(INPUT) as (app, pilot):
        screen, heat = await shown(app, pilot, "F")
        answer = printed(screen.commands()[0])
        assert (heat.rank, heat.windows) == (1, range(42, 44))
        assert heat.counted == sum(answer["counts"][1]["counts"][42:44])
        expected = [window["expected"] for window in answer["degraded"] if window["window"] in (42, 43)]
        said = app.screen.query_one(StatusLine).text
        assert all(f"0 of {value:.1f}" in said for value in expected)


@played
async def test_ranks_are_sorted_by_their_degraded_windows_and_filtered() -> None:
    async with opened(BUSY) as (app, pilot):
        screen, heat = await shown(app, pilot, "F", "s")
        low = Counter(window["rank"] for window in printed(screen.commands()[0])["degraded"])
        rows = [int(line.split()[0]) for line in screen_lines(app)[2:-2] if line.split() and line.split()[0].isdigit()]
        assert rows == sorted(rows, key=lambda rank: -low[rank])
        assert low[rows[0]]
        await type_line(pilot, "slash", "degraded:0")
        assert f"{4 - len(low)} of 4 ranks" in screen_text(app)
        await type_line(pilot, "slash", "rank:9")
        assert "0 of 4 ranks" in screen_text(app)
        assert heat.rank is None
        await pilot.press("down", "n", "enter")
        await type_line(pilot, "slash", "")
        assert heat.rank is not None


@played
async def test_enter_goes_to_the_rank_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[int] = []
    async with opened(STALL) as (app, pilot):
        await shown(app, pilot, "F")
        monkeypatch.setattr(app, "go_to_rank", gone.append)
        await pilot.press("up", "enter")
        assert gone == [2]


class Shown(App[None]):
    def compose(self) -> Iterator[FrequencyHeat]:
        yield FrequencyHeat(Look())


@pytest.mark.usefixtures("painted")
@played
async def test_of_many_ranks_only_those_in_view_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = 16_384
    drawn: Counter[int] = Counter()
    cell = FrequencyHeat.cell

    def counting(heat: FrequencyHeat, row: int, column: int, line: int) -> Piece:
        drawn[row] += 1
        return cell(heat, row, column, line)

    monkeypatch.setattr(FrequencyHeat, "cell", counting)
    counts = tuple(RankCounts(rank, (rank % 3, 4, 4, 4)) for rank in range(ranks))
    async with Shown().run_test(size=(80, 24)) as pilot:
        heat = pilot.app.query_one(FrequencyHeat)
        heat.focus()
        heat.show(FrequencyResult("*", 1000.0, 4, counts, (), ()), {})
        heat.list_ranks(range(ranks))
        await pilot.press("ctrl+end")
        assert heat.rank == ranks - 1
        heat.move_to(ranks // 2)
        await pilot.pause()
        assert len(drawn) < 100
        drawn.clear()
        heat.action_move(1, 0)
        await pilot.pause()
        assert set(drawn) == {ranks // 2, ranks // 2 + 1}
