"""Blame rank by rank: the graph of who waited for whom, read as a list that folds what is small."""

import networkx as nx
import pytest
from support.places import SAMPLES
from support.screen_text import go, opened, played, screen_lines, screen_text, until

from kair_tui.render.blame_graph import rank_graph
from kair_tui.tui.screens.blame import BlameScreen
from kair_tui.tui.widgets.rank_graph import RankGraph

LINK_RANK, FIRST, MEMBERS, LESSER = 200, 0, 20, 30

pytestmark = pytest.mark.usefixtures("own_places")


def of_many_ranks() -> nx.DiGraph:
    """One rank that all waited for; twenty that another one made late; thirty that were hardly waited for."""
    graph = nx.DiGraph()
    awaited = [FIRST, *range(1, MEMBERS + 1), *range(100, 100 + LESSER)]
    for rank in (*awaited, LINK_RANK):
        graph.add_node(f"rank{rank}", kind="rank", rank=rank, label=f"rank {rank}")
    graph.add_node("slow", kind="cause", rank=LINK_RANK, label="idle before send (communication)")
    for rank in awaited:
        waited = {FIRST: 600.0}.get(rank, 10.0 if rank <= MEMBERS else 1.0)
        own = f"own{rank}"
        graph.add_node(own, kind="cause", rank=rank, label="smaller delays")
        graph.add_edge("rank200", f"rank{rank}", kind="waited", waited_us=waited, share=waited / 1200, collectives=2)
        part = 0.75 if rank and rank <= MEMBERS else 0.0
        for cause, of in (("slow", part), (own, 1 - part)):
            late = {"blamed_us": of * waited, "share": of * waited / 1200, "synchronisations": 2}
            if of:
                graph.add_edge(f"rank{rank}", cause, kind="made_late", **late)
    return graph


def test_lesser_ranks_are_put_together_by_who_made_them_late_and_nothing_is_lost() -> None:
    graph = of_many_ranks()
    lines = rank_graph(graph)
    assert [one.rank for one in lines if one.role == "awaited"] == [FIRST, 1, 2, 3]
    (made,) = (one for one in lines if one.role == "several" and one.rank == LINK_RANK)
    assert made.text == "17 ranks, late mostly because of rank 200"
    assert lines[-1].text == "30 other ranks, each under 1 %"
    assert sum(one.time_us for one in lines) == pytest.approx(600 + 10 * MEMBERS + LESSER)
    assert sum(len(one.ranks) for one in lines) == 1 + MEMBERS + LESSER
    # What stands under a rank adds up: who waited for it, and what made it late.
    for one in (*(one for one in lines if one.role == "awaited"), *made.below):
        for role in ("waited", "because"):
            assert sum(edge.time_us for edge in one.below if edge.role == role) == pytest.approx(one.time_us)
    assert made.below[0].below[1].text == "late because of rank 200's idle before send (communication)"


@pytest.mark.slow
@played
async def test_the_graph_of_all_ranks_is_read_followed_and_left() -> None:
    async with opened(str(SAMPLES / "pipeline_slow_operator")) as (app, pilot):
        await go(app, pilot, "3", to=BlameScreen)
        await pilot.press("v")
        graph = app.screen.query_one(RankGraph)
        await until(pilot, lambda: bool(graph.items))
        shown = screen_text(app)
        assert "who waited  for 6 ranks, the longest first" in shown and "root causes" not in shown
        assert any(line.startswith("▾ rank 4 was waited for by 3 ranks") for line in screen_lines(app))
        assert "├─ ▲ late because of rank 1's kair_sample" in shown
        # Only whom triage accuses is marked, and what made it late itself.
        others, accused = shown.split("▾ ▲ rank 1", 1)
        marked = [line for line in others.split("\n") if "▲" in line]
        assert marked and all("rank 1's" in line or "accuses rank 1" in line for line in marked)
        assert all("of its own" in line or "lesser" in line for line in accused.split("\n") if "▲" in line)
        await pilot.press("down", "right")
        line = graph.chosen
        assert line is not None and line.role == "awaited" and line.rank == 3
        await pilot.press("z", "z", "space", "left")
        folded = graph.chosen
        # Rank 3 is one of "2 other ranks, each under 1 %": what it lies in is chosen.
        assert folded is not None and folded.role == "several" and folded.detail == "ranks 2-3"
        assert isinstance(app.screen, BlameScreen) and app.screen.commands()[-1].endswith("-o dot")
        await pilot.press("v")
        assert "root causes" in screen_text(app) and "▾ " in screen_text(app)
