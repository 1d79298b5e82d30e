"""Blame of long paths and many alike ones: folded, merged, told in words, and nobody accused who was not tested."""

from dataclasses import replace

import pytest
from support.kept_cases import assert_kept
from support.places import SAMPLES
from support.screen_text import go, opened, played, screen_lines, screen_text

from kair_engine.ranks import Rank
from kair_engine.results.blame import BlamePath, BlameResult, PathNode, PathPart, RankBlame, RoleInPath, RootCause
from kair_tui.render.blame_paths import blame_headline, path_end, stop_in_words
from kair_tui.tui.screens.blame import BlameScreen
from kair_tui.tui.widgets.blame_tree import BlameTree

SLOW = str(SAMPLES / "slow_operator")
HOPS = 20
ALIKE = 33

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]


def node(
    rank: int, operator: str, kind: str, role: RoleInPath = "victim", expected_us: float | None = None
) -> PathNode:
    return PathNode(Rank(rank), operator, kind, 900.0, 10_700.0, 0.0, role, expected_us)


def long_path(at: int, *, end_rank: int = 2) -> BlamePath:
    """Through the sends of twenty ranks to an operator that began in time and took too long."""
    symptom = node(3, "nccl:all_reduce", "collective")
    first = node(44, "nccl:all_reduce", "collective")
    hops = [node(45 + hop, "nccl:send", "send") for hop in range(HOPS)]
    end = node(end_rank, "mlp", "compute", "culprit", 4_100.0)
    parts = (PathPart(Rank(end_rank), "mlp", "compute", False, 0.9), PathPart(Rank(end_rank), None, "host", False, 0.1))
    symptom = replace(symptom, rank=Rank(at % 3), start_us=float(at))
    return BlamePath(symptom, (first, *hops, end), "compute", 1_000.0 - at, 4, 6_600.0, parts)


def deep(end_rank: int = 2) -> BlameResult:
    """33 alike waits, of which 9 tenths come from an operator and the rest from delays too small to be named."""
    paths = tuple(long_path(at, end_rank=end_rank) for at in range(ALIKE))
    total = sum(path.waited_us for path in paths)
    causes = (
        RootCause(Rank(end_rank), "mlp", "compute", False, 0.9 * total, 0.9, (4,), ALIKE),
        RootCause(Rank(end_rank), None, "host", False, 0.1 * total, 0.1, (4,), ALIKE),
    )
    by_rank = (RankBlame(Rank(end_rank), total, 1.0, ALIKE),)
    return BlameResult(
        4, (4,), "robust", paths, causes, by_rank, (), (), total, total, 0.0, ALIKE, (), ranks_time_us=4 * total
    )


@played
async def test_a_long_path_is_read_at_80x24_from_its_root_to_where_it_began() -> None:
    async with opened(SLOW) as (app, pilot):
        await go(app, pilot, "3", to=BlameScreen)
        app.screen.show("blame", deep())
        await pilot.pause()
        shown = screen_text(app)
        assert "▾ 3 ranks waited in nccl:all_reduce · 33 times" in shown
        assert "└─ rank 44 came last to nccl:all_reduce" in shown
        assert "⋮  19 hops, ranks 45 → 63" in shown
        assert "└─ waited for rank 64's send, nccl:send" in shown
        assert "└─ ▲ rank 2 mlp  compute: 10.7 ms instead of 4.10 ms" in shown
        # The path has the room that two root causes leave.
        assert len([line for line in screen_lines(app) if line.startswith(" by rank")]) == 1
        tree = app.screen.query_one(BlameTree)
        assert tree.size.height > 8
        await pilot.press("tab", "down", "down", "space")
        assert tree.virtual_size.height == HOPS + 3
        deepest = max(len(line) - len(line.lstrip()) for line in screen_lines(app))
        assert deepest <= 14
        # The lesser cause of the same waits has them too, with its part of them.
        await pilot.press("shift+tab", "down")
        assert "to rank 2 smaller delays · 33 of 33" in screen_text(app)
        assert "└─ ▲ rank 2 smaller delays  host: 10.0 % of how late that was" in screen_text(app)
        assert next(line for line in screen_lines(app) if "33 times" in line).endswith("10.0 %")


@played
async def test_only_whom_triage_accuses_is_marked() -> None:
    async with opened(SLOW, size=(160, 50)) as (app, pilot):
        await go(app, pilot, "3", to=BlameScreen)
        app.screen.show("blame", deep(end_rank=1))
        await pilot.pause()
        lines = screen_lines(app)
        assert [line for line in lines if "▲" in line] == [" ▲ triage accuses rank 2"]
        assert "culprit" not in screen_text(app)
        # Beside the root causes, not under them.
        assert any("root causes" in line and "paths" in line for line in lines)


def test_where_waiting_came_from_and_how_a_path_goes_on_is_told_in_words() -> None:
    result, wait, gemm = deep(), node(1, "nccl:all_reduce", "collective"), node(1, "gemm", "compute", "edge")
    of_operator = replace(result, root_causes=result.root_causes[:1], only_operator="mlp", only_rank=Rank(2))
    at_once = replace(result, ranks_time_us=result.waiting_us / 1.2)
    headlines = (result, of_operator, at_once, replace(result, method="paper"))
    later = (
        node(4, "nccl:all_reduce", "collective"),
        node(4, "nccl:send", "send"),
        node(4, "nccl:recv", "recv"),
        node(1, "cudaLaunchKernel", "host"),
        node(1, "gemm", "compute"),
    )
    first = stop_in_words(wait, later[0], is_first=True, is_last=False)
    in_time = node(1, "gemm", "compute", "culprit", 10_700.0)
    said = {
        "headlines": [blame_headline(of) for of in headlines],
        "stops": [first, *(stop_in_words(wait, one, is_first=False, is_last=False) for one in later)],
        "ends": [path_end(end, long_path(0)) for end in (gemm, in_time)],
    }
    assert_kept("blame_words", said)
