"""Differences, changes and events in words: nobody is accused, and the rest is counted."""

from dataclasses import replace

from support.kept_cases import assert_kept

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


DIFFERENCES = {
    "others have it unset": RING,
    "it is unset": replace(RING, value="(unset)", usual="Tree", others=2, ranks=(Rank(3), Rank(4)), hosts=()),
    "since the attempt before": replace(
        RING, what="host", value="node-9", usual="node-7", against="attempt", of="1", others=5
    ),
    "than in a baseline": replace(RING, what="versions driver", value="560", usual="550", against="job", of="healthy"),
}
HAPPENINGS = {
    "when, what, where, how long before, and nothing on others": XID,
    "no source would have told of others": replace(XID, others_observed=0),
    "others had it too": replace(XID, on_others=62),
    "an order that clocks do not tell": replace(XID, order_known=False, before_s=-2.0),
    "a change of a device": replace(XID, name="gpu_pcie_width", value=8.0, entity="gpu:GPU-5f3e"),
    "a change of a network card": replace(XID, name="nic_state", value=None, text="DOWN", entity="nic:mlx5_3/1"),
}


def test_a_difference_or_event_says_who_when_and_what_the_others_have() -> None:
    said = {name: difference_in_words(one) for name, one in DIFFERENCES.items()}
    assert_kept("differences", said | {name: happening_in_words(one, FINDING) for name, one in HAPPENINGS.items()})


def test_of_many_the_first_are_shown_and_the_rest_is_counted() -> None:
    many = [replace(RING, what=f"settings {number}") for number in range(9)]
    lines = difference_lines(result(*many))
    assert len(lines) == 6
    assert lines[-1] == "and 4 more differences: kair triage -o wide"
    assert len(difference_lines(result(*many), wide=True)) == 9
    assert happening_lines(result(happenings=(XID,))) == [f"near its begin: {happening_in_words(XID, FINDING)}"]
