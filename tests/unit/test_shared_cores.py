"""Ranks that lack cores together: culprits only where they are all of a host, or hosts are not known."""

from dataclasses import replace

import pytest
from support import cli_samples
from support.evidence_made import evidence_of

from kair_engine.causes import Cause
from kair_engine.ranks import Rank
from kair_engine.results.triage import Finding
from kair_engine.triage.job_wide import without_late_ends, without_shared_cores

ONE_HOST = dict.fromkeys(range(4), "node0")
TWO_HOSTS = {0: "node0", 1: "node1", 2: "node0", 3: "node1"}


def finding(cause: Cause, *ranks: int) -> Finding:
    return Finding(
        cause=cause,
        pattern="group" if len(ranks) > 1 else "persistent",
        ranks=tuple(map(Rank, ranks)),
        hosts=(),
        operator=None,
        edge=None,
        steps=(40, 41),
        p_value=0.001,
        time_lost_us_per_step=1e4,
        slowdown=1.1,
        evidence=(),
    )


def left(one: Finding, hosts: dict[int, str], *told: Cause) -> list[Finding]:
    job = replace(cli_samples.job(), ranks=(0, 1, 2, 3), hosts=hosts)
    return list(without_shared_cores(job, [one], set(told)))


def test_half_of_a_host_that_lacks_cores_is_nobodys_fault() -> None:
    (found,) = left(finding("contention", 1, 3), ONE_HOST)
    assert (found.pattern, found.ranks, found.seen_on, found.cause) == ("job_wide", (), (1, 3), "contention")


def test_it_is_not_told_twice() -> None:
    assert left(finding("contention", 1, 3), ONE_HOST, "contention") == []


@pytest.mark.parametrize(
    ("one", "hosts"),
    [
        (finding("contention", 1, 3), TWO_HOSTS),
        (finding("contention", 1, 3), {}),
        (finding("contention", 1), ONE_HOST),
        (finding("compute", 1, 3), ONE_HOST),
    ],
    ids=["all of a host", "hosts unknown", "one rank", "slow devices"],
)
def test_who_is_a_culprit_all_the_same(one: Finding, hosts: dict[int, str]) -> None:
    assert left(one, hosts, "contention") == [one]


def test_a_link_is_slow_by_itself_unless_one_end_lacks_cores() -> None:
    link = finding("communication", 0, 1)
    assert without_late_ends([link], [finding("contention", 1)]) == ()
    assert without_late_ends([link], [finding("contention", 2), finding("compute", 1)]) == (link,)
    assert without_late_ends([link], [finding("contention", 0), finding("contention", 1)]) == (link,)


@pytest.mark.parametrize(
    ("lacked_us", "told", "is_told"),
    [(47e3, ("contention",), False), (90e3, ("contention",), True), (47e3, (), True)],
    ids=["a little more than the others", "far more", "others lack nothing that costs"],
)
def test_who_was_measured_to_lack_cores_as_all_do_is_no_culprit(
    lacked_us: float, told: tuple[Cause, ...], is_told: bool
) -> None:
    figures = {"ready_us_per_step": lacked_us, "peers_least_us": 30e3, "peers_most_us": 36e3}
    one = replace(finding("contention", 1), evidence=(evidence_of("no_core", figures, None, (Rank(1),)),))
    assert (left(one, ONE_HOST, *told) == [one]) == is_told
