"""Which ranks are one culprit, and which operator is theirs."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMMUNICATION, COMPUTE, STEP_NS, job, nothing

from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.links import Link, SlowLink
from kair_engine.localize.localization import Localization, conclude
from kair_engine.triage.findings import one_operator
from kair_engine.triage.ranks.suspects import suspects


def slow(*ranks: int, percent: float = 5, row: int = COMPUTE, operator: str | None = None) -> Anomaly:
    """In every step, by so many percent of it."""
    kind = "persistent" if len(ranks) == 1 else "group"
    return Anomaly(kind, ranks, row, 0.001, percent / 100 * STEP_NS, operator=operator)


def delayed(rank: int, percent: float = 5, row: int = COMPUTE) -> Anomaly:
    return Anomaly("intermittent", (rank,), row, 0.002, percent / 100 * STEP_NS, (4, 4))


def found(*anomalies: Anomaly, ranks: int = 8, links: tuple[SlowLink, ...] = ()) -> Localization:
    return replace(conclude(job(nothing(5, ranks))), anomalies=anomalies, links=links)


def together(of: Localization) -> list[tuple[int, ...]]:
    """The ranks of each suspect."""
    return [suspect.positions for suspect in suspects(of)]


def test_a_rank_of_a_group_is_no_suspect_of_its_own() -> None:
    assert together(found(delayed(5, percent=9), slow(4, 5, 6), slow(1))) == [(4, 5, 6), (1,)]


def test_what_speaks_against_the_same_rank_is_put_together_the_costliest_first() -> None:
    (suspect,) = suspects(found(slow(2, percent=3), slow(2, percent=4, operator="mlp"), delayed(2, percent=9)))
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
