"""Who was late when: the map's cells, its lines of many ranks, and what the overview says of them."""

import numpy as np
import pytest
from support.places import SAMPLES
from support.screen_text import answered, front, go, opened, played, screen_lines, screen_text, type_line, until

from kair_engine.results.lateness import Lateness, darkest
from kair_engine.stats import role_medians
from kair_engine.triage.history.rows import COLUMNS, step_history
from kair_engine.views.lateness import lateness_of_history
from kair_tui.render.terminal import Look
from kair_tui.tui.screens.overview import OverviewScreen
from kair_tui.tui.widgets.grid import RankGrid
from kair_tui.tui.widgets.grid_layout import Group
from kair_tui.tui.widgets.lateness_map import LatenessMap, _binned

SLOW = str(SAMPLES / "slow_operator")
TWO_HOSTS = str(SAMPLES / "two_hosts_slow_input")
STEP_US = 1000.0


def planted(ranks: int = 8, steps: int = 20) -> Lateness:
    """Rank 5 is 200 µs late from step 12 on; rank 2 once, by 500 µs, in step 7."""
    late_us = np.zeros((ranks, steps))
    late_us[5, 12:] = 200.0
    late_us[2, 7] = 500.0
    return Lateness(np.arange(ranks), np.arange(steps), late_us, STEP_US)


def test_an_onset_and_one_bad_step_are_in_the_cells() -> None:
    cells = darkest(planted(), [(rank,) for rank in range(8)], [range(step, step + 1) for step in range(20)])
    assert np.flatnonzero(cells[5]).tolist() == list(range(12, 20)) and set(cells[5, 12:].tolist()) == {3}
    assert cells[2].tolist() == [0] * 7 + [4] + [0] * 12
    assert not cells[[0, 1, 3, 4, 6, 7]].any()


def test_a_block_of_cells_is_as_dark_as_its_latest() -> None:
    cells = darkest(planted(), [(0, 1, 2, 3), (4, 5, 6, 7)], [range(5), range(5, 10), range(10, 20)])
    assert cells.tolist() == [[0, 4, 0], [0, 0, 3]]
    assert planted().worst((0, 1, 2, 3), range(20)) == (2, 7, 500.0)


def test_a_history_is_compared_within_roles() -> None:
    ranks, steps = np.repeat(np.arange(4), 50), np.tile(np.arange(50), 4)
    own = np.where(ranks < 2, 100.0, 400.0)
    own[(ranks == 3) & (steps >= 30)] += 80.0
    columns = {name: np.zeros(200) for name in COLUMNS} | {"step": np.full(200, 500.0), "self": own}
    history = step_history(ranks, steps, columns, role_of={0: "a", 1: "a", 2: "b", 3: "b"})
    late = lateness_of_history(history)
    usual = role_medians(history.own, history.role)
    assert not late.sampled and late.late_us.shape == (4, len(history.steps))
    assert np.allclose(late.late_us, np.maximum(history.own - usual, 0).T)
    first = late.steps[np.flatnonzero(late.late_us[3])[0]]
    assert first == 30 and not late.late_us[:2].any()


def test_lines_of_many_ranks_hold_those_of_one_host_where_there_is_room() -> None:
    groups = [[0, 1, 2], [3, 4, 5, 6]]
    bins, rows = _binned(groups, 2, 1, apart=True)
    assert bins == [(0, (0, 1)), (0, (2,)), (1, (3, 4)), (1, (5, 6))] and rows == [(0,), (1,), (2,), (3,)]
    bins, rows = _binned(groups, 2, 2, apart=True)
    assert rows == [(0, 1), (2, 3)]
    bins, rows = _binned(groups, 4, 1, apart=False)
    assert bins == [(0, (0, 1, 2, 3)), (1, (4, 5, 6))] and rows == [(0,), (1,)]


async def the_map(keys: tuple[str, ...], *, look: Look, late: Lateness | None = None) -> list[str]:
    """The lines of the map on a terminal of 80 x 24, and the line that tells of the cursor."""
    async with opened(SLOW, look=look) as (app, pilot):
        screen = front(app, OverviewScreen)
        await pilot.press("H")
        shown = screen.query_one(LatenessMap)
        await until(pilot, lambda: shown.has_map)
        if late is not None:
            hosts = [Group(f"h{at}", tuple(range(at, at + 8))) for at in range(0, len(late.ranks), 8)]
            shown.show(late, hosts)
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        lines = screen_lines(app)
        first = next(at for at, line in enumerate(lines) if line.startswith(" step "))
        return [*lines[first + 1 : first + 1 + shown.rows.count], lines[-2]]


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
@pytest.mark.parametrize("ascii_only", [False, True])
@played
async def test_the_map_shows_when_it_began_and_the_one_bad_step(ascii_only: bool) -> None:
    lines = await the_map(("n",), look=Look(ascii_only=ascii_only), late=planted())
    signs = Look(ascii_only=ascii_only).glyphs.levels
    cells = [line.split()[-3][::3] for line in lines[:-1]]
    assert cells[5] == signs[0] * 12 + signs[3] * 8
    assert cells[2] == signs[0] * 7 + signs[4] + signs[0] * 12
    assert (
        "rank 5" in lines[-1]
        and "200 µs late, 20.0 % of the step".replace("µ", "u" if ascii_only else "µ") in lines[-1]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
@pytest.mark.parametrize("look", [Look(), Look(ascii_only=True), Look(colours="none")])
@played
async def test_sixteen_thousand_ranks_fit_the_screen(look: Look) -> None:
    late = planted(ranks=16_384, steps=300)
    lines = await the_map((), look=look, late=late)
    assert 4 <= len(lines) - 1 <= 10
    assert lines[0].startswith(" h0 ") and "16383" in lines[-2]
    assert "rank 2 " in lines[-1] and "step 7 " in lines[-1] and "the latest of ranks" in lines[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
@played
async def test_who_was_late_when_is_two_keys_away_and_leads_to_the_moment() -> None:
    async with opened(SLOW) as (app, pilot):
        await pilot.press("H")
        await until(pilot, lambda: "late, " in screen_lines(app)[-2])
        assert screen_lines(app)[-2].strip().startswith("rank 2 · step ")
        step = int(screen_lines(app)[-2].split(" · step ")[1].split()[0])
        await go(app, pilot, "4")
        assert f"timeline rank 2 step {step}" in screen_lines(app)[0]
        await pilot.press("escape", "H")
        assert "score ·" in screen_text(app) and "later  " not in screen_text(app)


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
@played
async def test_the_map_follows_the_chosen_steps_and_the_filter() -> None:
    async with opened(TWO_HOSTS, size=(160, 50)) as (app, pilot):
        screen = front(app, OverviewScreen)
        shown = screen.query_one(LatenessMap)
        await until(pilot, lambda: shown.has_map)
        assert shown.columns.count == 10 and shown.rows.count == 8
        await type_line(pilot, "slash", "host:node1")
        assert shown.rows.count == 4
        screen.narrow((5, 6, 7))
        await until(pilot, lambda: answered(app) and shown.columns.count == 3)


@pytest.mark.slow
@played
async def test_a_cursor_on_the_map_takes_that_over_the_ranks_along_and_both_come_to_rest() -> None:
    async with opened(SLOW) as (app, pilot):
        await pilot.press("H")
        screen = front(app, OverviewScreen)
        await until(pilot, lambda: screen.query_one(LatenessMap).has_map)
        with pytest.MonkeyPatch.context() as patch:
            moves: list[int] = []
            move_to = RankGrid.move_to
            patch.setattr(RankGrid, "move_to", lambda self, rank: (moves.append(rank), move_to(self, rank))[1])
            await pilot.press("down")
            await until(pilot, lambda: bool(moves))
            for _ in range(10):
                await pilot.pause()
        assert len(moves) == 1 and screen.query_one(RankGrid).rank == moves[0]


@pytest.mark.slow
@played
async def test_a_map_that_is_taken_away_while_it_is_hidden_is_drawn_empty() -> None:
    async with opened(SLOW) as (app, pilot):
        await pilot.press("H")
        screen = front(app, OverviewScreen)
        shown = screen.query_one(LatenessMap)
        await until(pilot, lambda: shown.has_map)
        await pilot.press("H")  # back to the ranks
        await until(pilot, lambda: not shown.size.width)
        shown.show(None, ())
        assert not shown.rows.count and not shown.has_map and shown.about() == ""
        await pilot.press("H")
        await until(pilot, lambda: bool(shown.size.width))
        assert shown.render_line(0).text.strip() == ""
