"""Which ranks are one culprit, and which operator is theirs."""

from dataclasses import replace

import numpy as np
import pytest
from support import cli_samples
from support.excess_builder import COMMUNICATION, COMPUTE, HOST, STEP_NS, job, nothing

from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.links import Link, SlowLink
from kair_engine.localize.localization import Localization, conclude
from kair_engine.triage.findings import one_operator
from kair_engine.triage.ranks.suspects import suspects

TWO_HOSTS = {rank: "good" if rank < 4 else "bad" for rank in range(8)}


def slow(*ranks: int, percent: float = 5, row: int = COMPUTE, operator: str | None = None) -> Anomaly:
    """In every step, by so many percent of it."""
    kind = "persistent" if len(ranks) == 1 else "group"
    return Anomaly(kind, ranks, row, 0.001, percent / 100 * STEP_NS, operator=operator)


def delayed(rank: int, percent: float = 5, row: int = COMPUTE) -> Anomaly:
    return Anomaly("intermittent", (rank,), row, 0.002, percent / 100 * STEP_NS, (4, 4))


def found(*anomalies: Anomaly, ranks: int = 8, links: tuple[SlowLink, ...] = ()) -> Localization:
    return replace(conclude(job(nothing(5, ranks))), anomalies=anomalies, links=links)


def together(of: Localization, hosts: dict[int, str] | None = None) -> list[tuple[int, ...]]:
    """The ranks of each suspect."""
    made = replace(cli_samples.job(), hosts=TWO_HOSTS if hosts is None else hosts)
    return [suspect.positions for suspect in suspects(made, of)]


def test_a_host_whose_ranks_were_found_one_by_one_is_one_group() -> None:
    made = replace(cli_samples.job(), hosts=TWO_HOSTS)
    (suspect,) = suspects(made, found(slow(4, percent=2), slow(5, percent=4), slow(6, percent=4), slow(7, percent=6)))
    assert suspect.positions == (4, 5, 6, 7)
    assert (suspect.largest.kind, suspect.largest.class_index) == ("group", COMPUTE)
    assert suspect.largest.excess_ns == pytest.approx(0.04 * STEP_NS)


def test_a_group_within_a_host_joins_the_hosts_other_ranks() -> None:
    made = replace(cli_samples.job(), hosts=TWO_HOSTS)
    (suspect,) = suspects(made, found(slow(4, 6, percent=4), slow(5, percent=6), slow(7, percent=2)))
    assert suspect.positions == (4, 5, 6, 7)
    # Two ranks by 4 %, one by 6 % and one by 2 %.
    assert suspect.largest.excess_ns == pytest.approx(0.04 * STEP_NS)


def test_a_host_whose_ranks_are_slow_in_the_same_operators_is_one_group() -> None:
    """As of many ranks in few steps, where no set of them is beyond chance in all that they compute."""
    made = replace(cli_samples.job(), hosts=TWO_HOSTS)
    gemm = [slow(rank, percent=4, operator="gemm") for rank in (4, 5, 6, 7)]
    (suspect,) = suspects(made, found(*gemm))
    assert suspect.positions == (4, 5, 6, 7) and suspect.largest.operator == "gemm"
    # Of several operators none is the culprit; one that is slow on some of the ranks adds to what they lose.
    (suspect,) = suspects(
        made, found(*gemm, slow(5, percent=6, operator="flash"), slow(6, percent=2, operator="flash"))
    )
    assert [anomaly.operator for anomaly in suspect.anomalies] == [None]
    assert suspect.largest.excess_ns == pytest.approx(0.06 * STEP_NS)


@pytest.mark.parametrize(
    ("anomalies", "hosts"),
    [
        ((slow(4, operator="a"), slow(5, operator="b"), slow(6, operator="a"), slow(7, operator="b")), TWO_HOSTS),
        ((slow(4), slow(5)), TWO_HOSTS),
        ((slow(4), slow(5), slow(6), slow(7, row=HOST)), TWO_HOSTS),
        ((slow(4), slow(5), slow(6), delayed(7)), TWO_HOSTS),
        ((slow(4), slow(5), slow(6), slow(7, operator="mlp")), TWO_HOSTS),
        ((slow(4), slow(5), slow(6), slow(7)), dict.fromkeys(range(8), "the only one")),
        ((slow(4), slow(5), slow(6), slow(7)), {}),
    ],
    ids=[
        "no operator in common",
        "two of four",
        "each of its own class",
        "one only now and then",
        "one in one operator",
        "the whole job's host",
        "unknown hosts",
    ],
)
def test_ranks_that_are_not_a_whole_host_stay_apart(anomalies: tuple[Anomaly, ...], hosts: dict[int, str]) -> None:
    assert together(found(*anomalies), hosts) == [anomaly.positions for anomaly in anomalies]


def test_a_rank_of_a_group_is_no_suspect_of_its_own() -> None:
    assert together(found(delayed(5, percent=9), slow(4, 5, 6), slow(1))) == [(4, 5, 6), (1,)]


def test_what_speaks_against_the_same_rank_is_put_together_the_costliest_first() -> None:
    made = replace(cli_samples.job(), hosts=TWO_HOSTS)
    (suspect,) = suspects(made, found(slow(2, percent=3), slow(2, percent=4, operator="mlp"), delayed(2, percent=9)))
    assert [anomaly.excess_ns / STEP_NS for anomaly in suspect.anomalies] == [0.09, 0.04, 0.03]
    assert suspect.largest.kind == "intermittent"


def test_a_rank_whose_link_is_slow_is_no_suspect_for_its_transfers() -> None:
    link = SlowLink(Link(None, (3, 4)), "send", 9e6, 3e6, 4, 0.001)
    of_link = found(slow(3, row=COMMUNICATION), slow(4, row=COMMUNICATION), links=(link,))
    assert together(of_link) == []
    others = found(slow(3), slow(5, row=COMMUNICATION), links=(link,))
    assert together(others) == [(3,), (5,)]  # for its compute; not on the link


def one_of(excess: dict[str, float], compute: float, total: float) -> str | None:
    """The operator named where rank 3 computes `total` % of the step longer, `compute` % in all.

    `excess` is what its operators take longer; each takes 5 % of the step on the others.
    """
    percents, work = nothing(5, 4), np.zeros((4, 4))
    percents[:, COMPUTE, 3], work[COMPUTE] = total, compute
    operators = {name: np.tile([0, 0, 0, more], (5, 1)) for name, more in excess.items()}
    return one_operator(job(percents, operators=operators, work=work), 3, "compute")


def test_an_operator_that_makes_up_most_of_the_excess_is_named() -> None:
    assert one_of({"mlp": 4, "norm": 1}, compute=80, total=6) == "mlp"


@pytest.mark.parametrize(
    ("excess", "compute", "total"),
    [
        ({"mlp": 3, "norm": 2.9}, 80, 6),
        # mlp takes 20 % longer than its 5 %; the other 5.2 % of the step also took 0.8 % longer, which is 15 %.
        ({"mlp": 1}, 12, 1.8),
        ({}, 80, 6),
    ],
    ids=["half of it", "the rest is slower too", "no operator differs"],
)
def test_no_operator_is_named_where_it_is_not_one(excess: dict[str, float], compute: float, total: float) -> None:
    assert one_of(excess, compute, total) is None


def test_what_the_other_operators_lose_may_be_a_little() -> None:
    # As above, but the 0.8 % are lost in 33.2 % of the step: 2 % slower, and mlp 20 %.
    assert one_of({"mlp": 1}, compute=40, total=1.8) == "mlp"
