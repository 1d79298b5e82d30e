"""The blame screen: pictures of it, its figures beside those of the command, and what its keys do."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.cli_samples import printed, waiting_for
from support.places import MEGATRON, SAMPLES
from support.screen_text import (
    answered,
    assert_says,
    assert_snapshot,
    go,
    opened,
    played,
    screen_lines,
    screen_text,
    type_line,
    until,
)
from textual.pilot import Pilot

from kair.app.waiting_graph import cause_id
from kair_engine.causes import Cause
from kair_engine.results.blame import BlamePath, BlameResult, MadeLate, PathNode, RankBlame, RankWaiting, RoleInPath
from kair_tui.render.blame_graph import MOST_GROUPS, graph, neighbourhood
from kair_tui.render.blame_paths import key_of, paths_by_cause
from kair_tui.render.terminal import Look
from kair_tui.render.units import duration, percent, signed_duration
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.screens.blame import BlameScreen
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.blame_tree import BlameTree
from kair_tui.tui.widgets.header_and_footer import StatusLine
from kair_tui.tui.widgets.rank_graph import Neighbours
from kair_tui.tui.widgets.table import Table

SLOW = str(SAMPLES / "slow_operator")
PIPELINE = str(SAMPLES / "pipeline_slow_operator")
TWO_HOSTS = str(SAMPLES / "two_hosts_slow_input")
HEALTHY = str(SAMPLES / "healthy")


pytestmark = [pytest.mark.usefixtures("own_places"), pytest.mark.slow]


@asynccontextmanager
async def blamed(
    job: str, size: tuple[int, int] = (80, 24), look: Look | None = None, place: Place | None = None
) -> AsyncIterator[tuple[KairApp, Pilot[int], BlameScreen]]:
    """The program on the blame screen."""
    async with opened(job, size=size, look=look) as (app, pilot):
        if place is None:
            await pilot.press("3")
        else:
            app.go(place)
        await until(pilot, lambda: isinstance(app.screen, BlameScreen) and answered(app))
        assert isinstance(app.screen, BlameScreen)
        yield app, pilot, app.screen


def tree(app: KairApp) -> BlameTree:
    return app.screen.query_one(BlameTree)


def tree_lines(app: KairApp) -> list[str]:
    """Every line of the paths, in view or not."""
    shown = tree(app)
    return ["".join(piece for piece, _ in shown.line_of(item, shown.size.width)) for item in shown.items]


def below(app: KairApp, heading: str) -> list[str]:
    """The lines under a heading, up to the status line."""
    lines = screen_lines(app)
    at = next(at for at, line in enumerate(lines) if line.lstrip(" ▸>").startswith(heading))
    return lines[at + 1 : -2]


@played
async def test_in_ascii_nothing_else_is_on_it() -> None:
    async with blamed(PIPELINE, (160, 50), Look(ascii_only=True)) as (app, pilot, _):
        await pilot.press("a", "tab", "z", "z")
        assert screen_text(app).isascii()


@pytest.mark.parametrize("job", [SLOW, PIPELINE, str(MEGATRON)])
@played
async def test_its_figures_are_those_of_the_command_that_prints_it(job: str) -> None:
    if not Path(job).exists():
        pytest.skip("no such recording here")
    async with blamed(job, (200, 60)) as (app, pilot, screen):
        await pilot.press("a", "x", "tab", "z", "z")
        data = printed(screen.commands()[0])
        ranks = below(app, "root causes")
        causes = ranks[1 : 1 + min(len(data["root_causes"]), 20)]
        bars = ranks[next(at for at, line in enumerate(ranks) if line.startswith(" by rank")) + 1 :]
        waited, attributed, rest = (data[f"{name}_us"] for name in ("waiting", "attributed", "unattributed"))
        bubble = ""
        if data["bubble_us"]:
            bubble = f"pipeline bubble {duration(data['bubble_us'])}, uneven stages included (no root cause); "
        known = f"{duration(attributed)} with a known cause, {duration(rest)} without"
        said = f"waiting {duration(waited)} in {data['collectives']} collectives: {bubble}{known}"
        # A sentence is wrapped where prose ends.
        assert said in " ".join(screen_text(app).split())
        for row, line in zip(data["root_causes"], causes, strict=False):
            assert f" {row['rank']}  " in line
            assert duration(row["blamed_us"]) in line
        for row, line in zip(data["by_rank"][:5], bars, strict=False):
            assert f"{percent(row['share'])}{duration(row['blamed_us']):>9}{row['arrived_last']:>6}" in line
        lines = tree_lines(app)
        symptoms = [line for line in lines if " waited in " in line]
        assert len(symptoms) == len(data["paths"])
        for path, line in zip(data["paths"], symptoms, strict=True):
            assert f"rank {path['symptom']['rank']} waited in " in line
            assert line.endswith(_figures(path, data["waiting_us"]))
        for path, line in zip(data["paths"], _ends(lines), strict=True):
            assert f"rank {path['chain'][-1]['rank']}" in line


def _figures(path: dict[str, Any], waiting_us: float) -> str:
    """What stands at the end of a symptom's line."""
    symptom = path["symptom"]
    late = signed_duration(symptom["lateness_us"]) if abs(symptom["lateness_us"]) >= 0.5 else "on time"
    return f"{duration(symptom['duration_us']):>9}{late:>10}{percent(path['waited_us'] / waiting_us):>9}"


def _ends(lines: list[str]) -> list[str]:
    """The last line of every path."""
    return [line for line, after in pairwise([*lines, " waited in "]) if " waited in " in after]


@played
async def test_the_paths_are_those_that_lead_to_the_cause_under_the_cursor() -> None:
    async with blamed(SLOW) as (app, pilot, screen):
        assert "to rank 2 kair_sample::mlp · 36 of 36" in screen_text(app)
        assert tree(app).path is not None
        assert "3 ranks waited in gloo:all_reduce · 36 times in steps 4-15" in screen_text(app)
        assert "└─ rank 2 came last to gloo:all_reduce" in screen_text(app)
        assert "▲ rank 2 kair_sample::mlp  compute: 23.9 ms instead of 4.09 ms" in screen_text(app)
        # Of smaller delays, too, it is told where they were a part of what made somebody late.
        await pilot.press("down")
        assert "to rank 2 smaller delays · 28 of 36" in screen_text(app)
        await pilot.press("a")
        assert "to all causes · 36" in screen_text(app)
        await pilot.press("x", "tab", "z", "z")
        assert len([line for line in tree_lines(app) if "waited in" in line]) == 36
        assert screen.commands()[0] == f"kair blame {SLOW} --limit 1000"


@played
async def test_paths_fold_and_the_cursor_walks_along_them() -> None:
    async with blamed(SLOW) as (app, pilot, _):
        await pilot.press("enter")
        assert tree(app).has_focus
        before = below(app, "paths")
        await pilot.press("right", "l")
        assert tree(app).node is not None
        assert tree(app).node.operator == "kair_sample::mlp"
        assert "rank 2 · kair_sample::mlp · began -319 µs" in app.screen.query_one(StatusLine).text
        await pilot.press("left")
        assert tree(app).at == 0
        await pilot.press("h")
        assert below(app, "paths")[0].startswith("▸ 3 ranks waited in gloo:")
        await pilot.press("space")
        assert below(app, "paths") == before
        await pilot.press("down", "z")
        assert tree(app).at == 0
        assert all(line.startswith("▸") for line in below(app, "paths") if line)
        await pilot.press("z")
        assert sum(line.startswith("▾") for line in tree_lines(app)) == 1, "all 36 paths are of one sort"


@played
async def test_a_stop_leads_to_its_rank() -> None:
    async with blamed(SLOW) as (app, pilot, _):
        await pilot.press("tab", "down", "enter")
        await until(pilot, lambda: not isinstance(app.screen, BlameScreen))
        assert "rank 2" in screen_lines(app)[0]
        await pilot.press("escape", "up", "2")
        await until(pilot, lambda: not isinstance(app.screen, BlameScreen))
        assert "rank 2" not in screen_lines(app)[0]


@played
async def test_one_step_at_a_time_and_after_the_last_all_again() -> None:
    async with blamed(SLOW) as (app, pilot, screen):
        for keys, step in (("right_square_bracket", 4), ("right_square_bracket", 5), ("left_square_bracket", 4)):
            await go(app, pilot, keys)
            assert screen.commands()[0] == f"kair blame {SLOW} --limit 1000 --step {step}"
            assert f"blame step {step}" in screen_lines(app)[0]
        assert " in total in step 4" in " ".join(screen_text(app).split())
        await go(app, pilot, "left_square_bracket")
        assert " in total in steps 4-15" in " ".join(screen_text(app).split())
        await go(app, pilot, "left_square_bracket")
        assert "blame step 15" in screen_lines(app)[0]


@played
async def test_the_cursor_stays_with_its_cause_from_step_to_step() -> None:
    async with blamed(SLOW) as (app, pilot, _):
        causes = app.screen.query_one(Table)
        await go(app, pilot, "s", "s", "S", "right_square_bracket", "right_square_bracket")
        await pilot.press("end")
        key = key_of(causes.chosen)
        await go(app, pilot, "right_square_bracket")
        there = {key_of(causes.row(at)) for at in range(causes.count)}
        assert key_of(causes.chosen) == key if key in there else causes.at == 0


@played
async def test_opened_for_a_rank_and_an_operator_it_says_so_and_goes_back_to_the_whole_job() -> None:
    place = Place("blame", rank=2, operator="kair_sample::mlp", step=8)
    async with blamed(SLOW, place=place) as (app, pilot, screen):
        command = f"kair blame {SLOW} --rank 2 --operator kair_sample::mlp --limit 1000 --step 8"
        assert screen.commands()[0] == command
        assert "only rank 2 and operators with 'kair_sample::mlp'" in screen_text(app)
        assert app.screen.query_one(Table).count == 1
        await go(app, pilot, "r")
        assert screen.commands()[0] == f"kair blame {SLOW} --limit 1000 --step 8"
        await go(app, pilot, "r")
        assert screen.commands()[0] == f"kair blame {SLOW} --rank 2 --limit 1000 --step 8"


@played
async def test_a_rank_that_nobody_waited_for_shows_where_it_waited() -> None:
    async with blamed(SLOW, place=Place("blame", rank=1)) as (app, _, _):
        assert "only rank 1: nobody waited for that (r shows the whole job)" in screen_text(app)
        assert_says(app, "to all causes", "0.0 % of the waiting came from rank 1", "waited in gloo:")


@played
async def test_a_filter_and_an_order_apply_to_the_causes() -> None:
    async with blamed(SLOW) as (app, pilot, _):
        causes = app.screen.query_one(Table)
        await type_line(pilot, "slash", "cause:host !idle")
        assert "6 root causes · filter cause:host !idle" in screen_text(app)
        await type_line(pilot, "slash", "rank:1")
        assert_says(app, "0 of 6 root causes", "to none")
        await type_line(pilot, "slash", "")
        await pilot.press("s", "S")
        assert "sorted by share, reversed" in screen_text(app)
        shares = [causes.row(at).share for at in range(causes.count)]
        assert shares == sorted(shares)


@played
async def test_a_healthy_job_accuses_nobody() -> None:
    async with blamed(HEALTHY) as (app, _, _):
        assert "triage accuses no rank: in every healthy job, too, somebody arrives last" in screen_text(app)


def test_a_rank_alone_has_nobody_to_wait_for(tmp_path: Path) -> None:
    one = min(Path(HEALTHY).glob("*.json.gz"))
    shutil.copy(one, tmp_path)

    @played
    async def look() -> None:
        async with blamed(str(tmp_path)) as (app, pilot, _):
            assert "only one rank: no other rank could wait for it" in screen_text(app)
            assert "paths" not in "".join(screen_lines(app)[2:-1])
            await pilot.press("enter", "tab", "a", "z", "space", "left", "right", "r")

    look()


async def _who_waited(app: KairApp, pilot: Pilot[int]) -> Neighbours:
    """The root cause's neighbourhood, once its graph is made."""
    await pilot.press("w")
    neighbours = app.screen.query_one(Neighbours)
    await until(pilot, lambda: bool(neighbours.items))
    return neighbours


@pytest.mark.parametrize(
    ("name", "job", "size", "look"),
    [
        ("blame_who_waited_80x24", SLOW, (80, 24), Look()),
        ("blame_who_waited_160x50", TWO_HOSTS, (160, 50), Look(ascii_only=True, colours="none")),
    ],
)
@played
async def test_who_waited_looks_like_its_picture(name: str, job: str, size: tuple[int, int], look: Look) -> None:
    async with blamed(job, size, look) as (app, pilot, _):
        await _who_waited(app, pilot)
        assert_snapshot(app, name)
        assert screen_text(app).isascii() == look.ascii_only


@played
async def test_who_waited_is_told_of_the_cause_under_the_cursor() -> None:
    async with blamed(SLOW) as (app, pilot, screen):
        neighbours = await _who_waited(app, pilot)
        data = printed(screen.commands()[0])
        lines = [(line.role, line.text, line.time_us) for line in neighbours.items]
        assert lines[:3] == [
            ("cause", "kair_sample::mlp (compute)", pytest.approx(data["root_causes"][0]["blamed_us"])),
            ("late", "made rank 2 late", pytest.approx(data["made_late"][0]["blamed_us"])),
            ("waited", "ranks 0-1, 3 waited for it, about 716 ms each", pytest.approx(data["waiting_us"])),
        ]
        others = sum(line.time_us for line in neighbours.items if line.role == "also")
        assert lines[1][2] + others == pytest.approx(data["waiting_us"])
        assert screen.commands()[-1] == f"kair blame {SLOW} --rank 2 -o dot"
        await pilot.press("down")
        assert neighbours.items[0].text == "smaller delays (host)"
        assert "▲ rank 2 smaller delays (host)" in screen_text(app)
        await pilot.press("w")
        await until(pilot, lambda: "to rank 2 smaller delays" in screen_text(app))
        assert len(screen.commands()) == 2


@played
async def test_the_cursor_walks_along_who_waited_and_leads_to_a_rank() -> None:
    async with blamed(SLOW) as (app, pilot, _):
        neighbours = await _who_waited(app, pilot)
        await pilot.press("enter", "down", "down")
        assert neighbours.has_focus
        said = app.screen.query_one(StatusLine).text
        assert said.startswith("ranks 0-1, 3 waited 716 ms to 717 ms each for rank 2 in 36 synchronisations")
        await pilot.press("w")
        assert tree(app).has_focus
        await pilot.press("w", "enter")
        await until(pilot, lambda: not isinstance(app.screen, BlameScreen))
        assert "rank 0" in screen_lines(app)[0]


@played
async def test_who_waited_in_one_step_is_that_steps() -> None:
    async with blamed(SLOW) as (app, pilot, screen):
        neighbours = await _who_waited(app, pilot)
        before = neighbours.items
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: answered(app) and neighbours.items != before)
        assert neighbours.items[2].time_us == pytest.approx(printed(screen.commands()[0])["waiting_us"])
        await type_line(pilot, "slash", "rank:1")
        assert neighbours.items == ()
        assert "because of none" in screen_text(app)


@pytest.mark.parametrize("culprit", [0, 5, 63])
def test_ranks_that_waited_alike_are_told_together(culprit: int) -> None:
    result = waiting_for((culprit,), 64)
    cause = next(cause for cause in result.root_causes if cause.rank == culprit)
    node = cause_id(result, cause)
    assert node is not None
    top, late, waited = neighbourhood(graph(result, "node-link"), node)
    ranks = {0: "ranks 1-63", 5: "ranks 0-4, 6-63", 63: "ranks 0-62"}[culprit]
    assert waited.text == f"{ranks} waited for it, about 1.00 ms each"
    assert (top.time_us, late.time_us, waited.time_us) == (63_000, 63_000, 63_000)
    assert waited.is_last == (True, True)


def test_the_shortest_waits_are_told_in_one_line() -> None:
    waiting = (*(RankWaiting(rank, 20, 2.0**rank, 1) for rank in range(20)), RankWaiting(None, 20, 999.0, 70))
    late = (MadeLate(20, 21, "aten::mm", "compute", False, sum(row.waited_us for row in waiting), 20),)
    result = replace(_result(), waiting=waiting, made_late=late)
    _, _, *groups = neighbourhood(graph(result, "node-link"), "rank21_cause1")
    assert len(groups) == MOST_GROUPS + 1
    assert groups[0].text == "rank 19 waited for it"
    assert groups[-1].text == "other ranks waited for it"
    assert groups[-2].text == f"ranks 0-{20 - MOST_GROUPS} waited for it, up to 16.4 ms each"
    assert sum(group.time_us for group in groups) == late[0].blamed_us


@pytest.mark.usefixtures("painted")
@played
async def test_a_move_along_the_paths_redraws_two_lines() -> None:
    async with blamed(PIPELINE, (160, 50)) as (_, pilot, _):
        await pilot.press("tab")
        await until(pilot, lambda: isinstance(pilot.app.focused, BlameTree))
        drawn: list[int] = []
        render_line = BlameTree.render_line
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BlameTree, "render_line", lambda self, y: (drawn.append(y), render_line(self, y))[1])
            await pilot.press("down")
            await until(pilot, lambda: bool(drawn))
        assert sorted(set(drawn)) == [0, 1]


def _path(rank: int, operator: str, role: RoleInPath, cause: Cause) -> BlamePath:
    symptom = PathNode(0, "all_reduce", "collective", 10.0, 5.0, 0.0, "victim")
    return BlamePath(symptom, (PathNode(rank, operator, "host", 1.0, 2.0, 3.0, role),), cause, 5.0, 7)


def _result(*paths: BlamePath) -> BlameResult:
    return BlameResult(7, (7,), "robust", paths, (), (RankBlame(1, 5.0, 1.0, 1),), (), (), 5.0, 5.0, 0.0, 1, ())


def test_a_path_to_a_delay_too_small_to_be_named_is_its_ranks() -> None:
    path = _path(1, "aten::add", "culprit", "compute")
    assert paths_by_cause(_result(path)) == {(1, None, "compute", False): [path]}
