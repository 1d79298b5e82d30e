"""A slow link names the process group it belongs to, not a rank; a slow edge of a pipeline its two ends."""

from pathlib import Path

import pytest
from support.trace_builder import trace

from kair_engine.localize.analysis import localize
from kair_engine.localize.links import Link, OwnTime, SlowLink, in_common, slow_links
from kair_engine.trace.model import Layout
from kair_engine.triage.analysis import triage

PAIRS = 5


def pairs(slow: dict[int, float], steps: int = 6) -> str:
    """Ten ranks in five groups of two; each computes for 600 µs, then reduces for about 50 µs (a slow group longer).

    In the end all meet for 30 µs.
    """
    lines = []
    for step in range(steps):
        begin = step * 1000
        all_took = {pair: slow.get(pair, 50 + pair % 2) for pair in range(PAIRS)}
        end = begin + 600 + max(all_took.values()) + 30
        lines.append(f"step {step}: {begin}+{end - begin}")
        for pair, took in all_took.items():
            ranks, over = f"{2 * pair}-{2 * pair + 1}", begin + 600 + took
            work = f"gemm {begin}+600 | allreduce@dp{pair}#{step} {begin + 600}+{took}"
            lines.append(f"{ranks} gpu7 | {work} | barrier@world#{step} {over}+{end - over} :collective")
    return "\n".join(lines)


def test_a_slow_group_is_named_and_no_rank_is_flagged(tmp_path: Path) -> None:
    made = trace(tmp_path, pairs({3: 120}))
    result = localize(made)
    (slow,) = result.slow_links
    assert (slow.group, slow.ranks, slow.operator, slow.siblings) == ("dp3", (6, 7), "allreduce", 4)
    assert (slow.own_us, slow.expected_us) == (120, 50)
    assert not any(score.flagged for score in result.scores)
    (finding,) = triage(made).findings
    assert (finding.cause, finding.pattern, finding.edge, finding.ranks) == ("communication", "group", "dp3", (6, 7))
    # Then the next slowest pair's 51 µs count.
    assert finding.time_lost_us_per_step == pytest.approx(120 - 51)
    assert finding.slowdown == pytest.approx(750 / 681)
    assert finding.evidence[1].kind == "group_not_rank"


@pytest.mark.parametrize("slow", [{}, {3: 56}, dict.fromkeys(range(PAIRS), 120)])
def test_groups_within_15_percent_of_their_siblings_are_left_alone(tmp_path: Path, slow: dict[int, float]) -> None:
    assert localize(trace(tmp_path, pairs(slow))).slow_links == ()


EDGES = 5


def pipeline(slow: dict[int, float], steps: int = 6) -> str:
    """Ranks 0 to 4 of stage 0, each sending to its neighbour of stage 1, five ranks on, for about 50 µs.

    A receive is there from the step's begin on: what counts is how long both ends were in the transfer. In the end all
    meet for 30 µs.
    """
    lines = []
    for step in range(steps):
        begin = step * 1000
        end = begin + 680 + max(slow.get(edge, 50 + edge % 2) for edge in range(EDGES)) + 30
        lines.append(f"step {step}: {begin}+{end - begin}")
        for edge in range(EDGES):
            took = slow.get(edge, 50 + edge % 2)
            group = f"send@{edge}→{edge + EDGES}", f"recv@{edge}→{edge + EDGES}"
            sent = begin + 600 + took
            meet = [f"barrier@world#{step} {at}+{end - at} :collective" for at in (sent, sent + 80)]
            lines.append(f"{edge} gpu7 | gemm {begin}+600 | {group[0]} {begin + 600}+{took} :send | {meet[0]}")
            lines.append(f"{edge + EDGES} gpu7 | {group[1]} {begin}+{600 + took} :recv | gemm {sent}+80 | {meet[1]}")
    return "\n".join(lines)


STAGES = Layout(pp=2, pipeline_stage={rank: rank // EDGES for rank in range(2 * EDGES)})


def test_a_slow_edge_names_its_sender_and_receiver(tmp_path: Path) -> None:
    made = trace(tmp_path, pipeline({3: 120}), layout=STAGES)
    result = localize(made)
    (slow,) = result.slow_links
    assert (slow.group, slow.ranks, slow.siblings) == ("rank 3 → rank 8", (3, 8), 4)
    assert (slow.own_us, slow.expected_us) == (120, 50)
    (finding,) = triage(made).findings
    assert (finding.cause, finding.pattern, finding.ranks) == ("communication", "group", (3, 8))
    assert finding.edge == "rank 3 → rank 8"
    assert finding.time_lost_us_per_step == pytest.approx(120 - 51)


def test_slow_edges_of_one_rank_name_the_rank() -> None:
    edges = [slow_link(3, 8), slow_link(2, 7), slow_link(3, 4)]
    shared = [(ranks, [slow.link.name for slow in links]) for ranks, links in in_common(edges)]
    assert shared == [((3,), ["rank 3 → rank 8", "rank 3 → rank 4"]), ((2, 7), ["rank 2 → rank 7"])]


@pytest.mark.parametrize("slow", [{}, {3: 56}, dict.fromkeys(range(EDGES), 120)])
def test_edges_within_15_percent_of_their_siblings_are_left_alone(tmp_path: Path, slow: dict[int, float]) -> None:
    assert localize(trace(tmp_path, pipeline(slow), layout=STAGES)).slow_links == ()


def slow_link(sender: int, receiver: int) -> SlowLink:
    return SlowLink(Link(None, (sender, receiver)), "send", 2.0, 1.0, 4, 0.001)


def of_family(family: int, own_us: list[float]) -> dict[Link, OwnTime]:
    """Groups of one kind, whose siblings take 100 µs."""
    return {
        Link(f"family {family}, group {at}", (at, at + 1)): OwnTime(own * 1e3, 1e5, len(own_us) - 1, "op", (family,))
        for at, own in enumerate(own_us)
    }


def found(*families: dict[Link, OwnTime]) -> list[SlowLink]:
    step = {link: time for family in families for link, time in family.items()}
    return slow_links([step] * 5, step_time_ns=1e6, p_below=0.0015, smallest=0.01)


def test_links_are_compared_with_their_own_kind_only() -> None:
    steady, varied = of_family(0, [100, 100, 100, 100, 100, 150]), of_family(1, [60, 140, 70, 130, 80, 150])
    assert found(varied) == []
    (alone,), (beside,) = found(steady), found(steady, varied)
    assert alone.link.group == beside.link.group == "family 0, group 5"
    assert beside.p_value == pytest.approx(2 * alone.p_value)  # more was tried


def test_links_of_two_kinds_are_not_enough_of_one() -> None:
    assert found(of_family(0, [100, 100, 150])) == []
    assert found(of_family(0, [100, 100, 150]), of_family(1, [100, 100, 100])) == []
