"""Differences, changes and events in words: nobody is accused, and the rest is counted."""

from dataclasses import replace

import pytest

from kair_engine.ranks import Rank
from kair_engine.results.evidence import Difference, Happening
from kair_engine.results.triage import Finding, TriageResult
from kair_tui.render.differences import (
    difference_in_words,
    difference_lines,
    happening_in_words,
    happening_lines,
)

FINDING = Finding("compute", "persistent", (Rank(3),), (), None, None, (1,), 1e-9, 1.0, 1.1, (), since=41_200)
RING = Difference("environment NCCL_ALGO", (Rank(3),), ("node-7",), "Ring", "(unset)", 31, "peers")
AT = 1_700_056_960_000_000_000  # 14:02:40 UTC
XID = Happening(
    AT, 5_000_000_000, "xid", 63.0, None, "gpu:GPU-5f3e", "node-7", (Rank(3),), True, 0, 11.0, True, 1, None, 31
)


def result(*differences: Difference, happenings: tuple[Happening, ...] = ()) -> TriageResult:
    return TriageResult(
        "straggler", (FINDING,), (), 1.0, 1.0, 0.0, (1,), (), differences=differences, happenings=happenings
    )


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (RING, "differs: rank 3 (node-7): environment NCCL_ALGO is Ring; 31 others have it unset"),
        (
            replace(RING, value="(unset)", usual="Tree", others=2, ranks=(Rank(3), Rank(4)), hosts=()),
            "differs: ranks 3-4: environment NCCL_ALGO is unset; 2 others have Tree",
        ),
        (
            replace(RING, what="host", value="node-9", usual="node-7", against="attempt", of="1", others=5),
            "changed since attempt 1: rank 3 (node-7): host is node-9, it was node-7; on 5 other ranks it is as it was",
        ),
        (
            replace(RING, what="versions driver", value="560", usual="550", against="job", of="healthy"),
            "other than in healthy: versions driver is 560, it was 550",
        ),
    ],
)
def test_a_difference_says_who_has_what_and_what_the_others_have(one: Difference, words: str) -> None:
    assert difference_in_words(one) == words


def test_an_event_says_when_what_where_how_long_before_and_whether_others_had_it() -> None:
    assert happening_in_words(XID, FINDING) == (
        "14:02:40 UTC ± 5.00 s: XID 63 on GPU-5f3e (rank 3), 11.0 s before rank 3 became slow (step 41,200, "
        "14:02:51 UTC); nothing on 31 peers"
    )


def test_silence_of_others_is_told_only_where_a_source_would_have_told() -> None:
    assert happening_in_words(replace(XID, others_observed=0), FINDING).endswith("; no source tells of others")
    assert happening_in_words(replace(XID, on_others=62), FINDING).endswith("; also on 62 others")


def test_an_order_that_clocks_do_not_tell_is_said_to_be_uncertain() -> None:
    told = happening_in_words(replace(XID, order_known=False, before_s=-2.0), FINDING)
    assert "2.00 s after rank 3 became slow" in told
    assert "as far as clocks tell" in told


def test_a_change_says_what_it_became() -> None:
    one = replace(XID, name="gpu_pcie_width", value=8.0, entity="gpu:GPU-5f3e")
    assert ": PCIe lanes became 8 on GPU-5f3e (rank 3), " in happening_in_words(one, FINDING)
    one = replace(XID, name="nic_state", value=None, text="DOWN", entity="nic:mlx5_3/1")
    assert ": link state became DOWN on mlx5_3/1 of node-7 (rank 3), " in happening_in_words(one, FINDING)


def test_of_many_the_first_are_shown_and_the_rest_is_counted() -> None:
    many = [replace(RING, what=f"settings {number}") for number in range(9)]
    lines = difference_lines(result(*many))
    assert len(lines) == 6
    assert lines[-1] == "and 4 more differences: kair triage -o wide"
    assert len(difference_lines(result(*many), wide=True)) == 9
    assert happening_lines(result(happenings=(XID,))) == [f"near its begin: {happening_in_words(XID, FINDING)}"]
