"""What differs between ranks, what changed since, and which rows of evidence are of whom: planted ones and twins."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rank_identities import healthy_job, planted

from kair_engine.evidence.changes import changes, last_attempts
from kair_engine.evidence.differences import differences
from kair_engine.evidence.joining import Joins
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.measures import HOST, gpu, gpu_index, nic, of_rank, pci, process

Identities = dict[int, RankIdentity]
UUIDS = tuple(f"GPU-0000000{n}-1111-2222-3333-444444444444" for n in range(8))


def ranks(number: int, per_host: int = 8, **environment: str) -> Identities:
    return {
        rank: RankIdentity(
            rank,
            host=f"node-{rank // per_host}",
            pid=1000 + 7 * rank,
            process_s=100,
            local_rank=rank % per_host,
            environment={"OMP_NUM_THREADS": "8", **environment},
            versions={"driver": "550.54.15"},
            settings={"governor": "performance"},
        )
        for rank in range(number)
    }


def with_variables(of: Identities, name: str, *values: str) -> Identities:
    return {
        rank: replace(one, environment={**one.environment, name: value})
        for (rank, one), value in zip(of.items(), values, strict=True)
    }


def told(
    of: Identities, accused: tuple[int, ...] = (), **roles: tuple[int, ...]
) -> list[tuple[str, tuple[int, ...], str]]:
    role_of = {rank: role for role, members in roles.items() for rank in members}
    return [(one.what, one.ranks, one.value) for one in differences(of, accused, role_of)]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_a_planted_difference_is_found_and_attributed(number: int) -> None:
    job, truth = planted(Random(f"planted {number}"), number)
    found = differences(truth.identities, truth.ranks, job.roles)
    hosts = tuple(dict.fromkeys(truth.identities[rank].host for rank in truth.ranks))
    assert [(one.what, one.ranks, one.hosts, one.value, one.accused) for one in found] == [
        (truth.what, truth.ranks, hosts, truth.value, True)
    ]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_ranks_that_were_set_up_alike_have_no_difference(seed: int) -> None:
    job = healthy_job(Random(seed))
    assert differences(job.identities, (), job.roles) == ()


def test_a_difference_says_what_the_others_have_and_how_many() -> None:
    of = ranks(32)
    of[3] = replace(of[3], environment={**of[3].environment, "NCCL_ALGO": "Ring"})
    (one,) = differences(of, (5,))
    assert (one.what, one.ranks, one.hosts, one.value, one.usual, one.others) == (
        "environment NCCL_ALGO", (3,), ("node-0",), "Ring", "(unset)", 31,
    )  # fmt: skip
    assert not one.accused


def test_a_host_counts_once_however_many_ranks_it_has() -> None:
    of = ranks(12)  # eight ranks of one host, four of another: neither is the usual one
    of = {rank: replace(one, settings={"governor": one.host or ""}) for rank, one in of.items()}
    assert told(of) == []


def test_half_is_nobodys_minority() -> None:
    of = with_variables(ranks(4, 4), "NCCL_ALGO", "Ring", "Ring", "Tree", "Tree")
    assert told(of) == []
    assert told(of, (), first=(0, 1), second=(2, 3)) == []


def test_what_sets_an_accused_half_apart_is_told() -> None:
    of = with_variables(ranks(8, 4), "NCCL_ALGO", *["Ring"] * 4, *["Tree"] * 4)
    assert told(of, (4, 5, 6, 7)) == [("environment NCCL_ALGO", (4, 5, 6, 7), "Tree")]
    for accused in ((4, 5, 6), (4, 5, 6, 7, 0), (2, 3, 4, 5)):
        assert told(of, accused) == []


def test_halves_by_role_are_compared_within_their_roles() -> None:
    of = with_variables(ranks(8, 8), "NCCL_ALGO", *["Ring"] * 4, *["Tree"] * 3, "CollNet")
    assert told(of) == []
    (one,) = differences(of, (), dict(enumerate(["first"] * 4 + ["second"] * 4)))
    assert (one.ranks, one.value, one.usual, one.others) == ((7,), "CollNet", "Tree", 3)


def test_what_a_role_of_several_hosts_has_is_by_design() -> None:
    of = with_variables(ranks(12, 4), "NCCL_ALGO", *["Ring"] * 10, "Tree", "Tree")
    assert told(of, (), first=tuple(range(10)), last=(10, 11)) == []
    assert told(of) == [("environment NCCL_ALGO", (10, 11), "Tree")]


def test_a_driver_is_not_of_a_role_by_design() -> None:
    of = {rank: replace(one, versions={"driver": "535" if rank < 8 else "550"}) for rank, one in ranks(32, 4).items()}
    assert told(of, (), first=tuple(range(8)), rest=tuple(range(8, 32))) == [
        ("versions driver", tuple(range(8)), "535")
    ]


def test_what_one_place_has_on_every_host_is_by_design() -> None:
    of = {
        rank: replace(one, settings={"pcie_width": "8" if rank % 4 == 3 else "16"})
        for rank, one in ranks(12, 4).items()
    }
    assert told(of) == []
    assert told({rank: one for rank, one in of.items() if rank < 4}) == [("settings pcie_width", (3,), "8")]


def test_numbers_of_ranks_are_their_own_and_equal_numbers_are_not() -> None:
    of = with_variables(ranks(8), "CUDA_VISIBLE_DEVICES", *"01234567")
    assert told(of) == []
    of = with_variables(of, "CUDA_VISIBLE_DEVICES", *"01234467")
    (one,) = differences(of, (5,))
    assert (one.ranks, one.value, one.accused, one.others) == ((5,), "4", True, 7)
    assert one.usual == "values like 0 (of rank 0)"


def test_a_core_list_that_goes_by_place_has_one_odd_one_out() -> None:
    pinned = [f"{12 * n}-{12 * n + 11}" for n in range(8)]
    assert told(with_variables(ranks(8), "GOMP_CPU_AFFINITY", *pinned)) == []
    pinned[6] = "0-11"
    assert told(with_variables(ranks(8), "GOMP_CPU_AFFINITY", *pinned)) == [
        ("environment GOMP_CPU_AFFINITY", (6,), "0-11")
    ]


def test_numbers_of_other_ranks_are_compared_over_hosts() -> None:
    """A DGX's NICs follow no rule but their place: only the same place of other hosts tells."""
    nics = ("mlx5_0:1", "mlx5_3:1", "mlx5_4:1", "mlx5_9:1")
    of = with_variables(ranks(12, 4), "UCX_NET_DEVICES", *nics, *nics, *nics)
    assert told(of) == []
    of = with_variables(of, "UCX_NET_DEVICES", *nics, nics[0], nics[0], *nics[2:], *nics)
    assert told(of) == [("environment UCX_NET_DEVICES", (5,), "mlx5_0:1")]


def test_many_values_of_one_thing_are_listed_as_one() -> None:
    of = with_variables(ranks(32), "NCCL_ALGO", *["Ring"] * 20, *(f"Tree{chr(97 + n)}" for n in range(12)))
    assert told(of) == [("environment NCCL_ALGO", tuple(range(20, 32)), "one of 12 values, such as Treea")]


def test_what_no_source_tells_of_a_rank_is_no_difference() -> None:
    of = ranks(8, NCCL_ALGO="Ring")
    of[2] = replace(of[2], environment={}, versions={}, settings={})
    assert told(of) == []


def test_numa_nodes_are_compared_over_hosts_alone() -> None:
    of = {rank: replace(one, numa_node=int(rank % 4 == 3)) for rank, one in ranks(12, 4).items()}
    assert told({rank: one for rank, one in of.items() if rank < 4}) == []
    of[6] = replace(of[6], numa_node=1)
    assert told(of) == [("NUMA node", (6,), "1")]


def test_what_accused_ranks_have_comes_first_and_together() -> None:
    of = ranks(32)
    of[1] = replace(of[1], settings={"governor": "powersave"})
    of[9] = replace(of[9], settings={"governor": "ondemand"}, versions={"driver": "535.1"})
    assert told(of, (9,)) == [
        ("versions driver", (9,), "535.1"),
        ("settings governor", (9,), "ondemand"),
        ("settings governor", (1,), "powersave"),
    ]


def test_control_characters_of_a_value_are_not_kept() -> None:
    of = ranks(8)
    of[3] = replace(of[3], environment={**of[3].environment, "NCCL_ALGO": "\x1b[31mRing\n"})
    assert told(of) == [("environment NCCL_ALGO", (3,), "[31mRing")]


def test_a_rank_on_another_host_is_told_since_the_attempt_before() -> None:
    before = ranks(16)
    now = {rank: replace(one, pid=9000 + rank, process_s=200) for rank, one in before.items()}
    assert changes(before, now, "1", "attempt") == ()
    now[3] = replace(now[3], host="node-9")
    now[5] = replace(now[5], versions={"driver": "560.1"})
    found = changes(before, now, "1", "attempt", (5,))
    assert [(one.what, one.ranks, one.value, one.usual, one.others, one.accused) for one in found] == [
        ("versions driver", (5,), "560.1", "550.54.15", 15, True),
        ("host", (3,), "node-9", "node-0", 15, False),
    ]


def test_another_port_or_process_is_no_change_since_the_attempt_before() -> None:
    before = with_variables(ranks(2), "NCCL_COMM_ID", "10.0.0.1:29500", "10.0.0.1:29500")
    before = with_variables(before, "NCCL_DEBUG_FILE", *(f"/logs/{one.host}.{one.pid}" for one in before.values()))
    now = {rank: replace(one, pid=77 + rank, host=f"node-{8 + rank}.cluster") for rank, one in before.items()}
    now = with_variables(now, "NCCL_COMM_ID", "10.0.0.9:31111", "10.0.0.9:31111")
    now = with_variables(now, "NCCL_DEBUG_FILE", *(f"/logs/{one.host}.{one.pid}" for one in now.values()))
    assert {one.what for one in changes(before, now, "1", "attempt")} == {"host"}


def test_a_job_that_moved_as_a_whole_is_one_change() -> None:
    before = ranks(64)
    now = {rank: replace(one, host=f"other-{rank // 8}") for rank, one in before.items()}
    (one,) = changes(before, now, "2", "attempt")
    assert (one.what, one.ranks) == ("host", tuple(range(64)))
    assert one.value == "other-0, other-1, other-2, other-3 and 4 more"


def test_the_last_two_processes_of_a_rank_are_its_attempts() -> None:
    first, second = ranks(2)[0], replace(ranks(2)[0], pid=5, process_s=300)
    attempts = last_attempts([first, replace(first, container="image"), second, ranks(2)[1]])
    assert attempts.before == {0: replace(first, container="image")}
    assert (attempts.now[0], attempts.now[1], attempts.number) == (second, ranks(2)[1], 1)


def test_a_healthy_job_is_compared_by_what_most_of_its_ranks_have() -> None:
    healthy = ranks(8)
    now = {rank: replace(one, host=f"new-{rank // 8}", versions={"driver": "560.1"}) for rank, one in ranks(16).items()}
    now[3] = replace(now[3], versions={"driver": "550.54.15"}, device=DeviceIdentity(UUIDS[3]))
    (one,) = changes(healthy, now, "healthy", "job")
    assert (one.what, one.value, one.usual, one.others, one.of) == (
        "versions driver", "560.1", "550.54.15", 8, "healthy",
    )  # fmt: skip
    assert one.ranks == tuple(rank for rank in range(16) if rank != 3)


def joins() -> Joins:
    of = {
        rank: RankIdentity(
            rank,
            host=f"node-{rank // 2}.cluster.local",
            pid=4000 + rank % 2,
            local_rank=rank % 2,
            device=DeviceIdentity(UUIDS[rank], f"0000:{0x1B + rank % 2:02x}:00.0", 1 - rank % 2),
            nics=(f"mlx5_{rank % 2}/1",),
            scheduled=(f"pod:{'ml/' if rank < 2 else ''}train-{rank // 2}", "job:4711"),
        )
        for rank in range(4)
    }
    return Joins(of, {rank: f"node-{rank // 2}" for rank in range(6)})


@pytest.mark.parametrize(
    ("host", "entity", "ranks_of_it", "by"),
    [
        (None, gpu(UUIDS[2]), (2,), "uuid"),
        ("node-9", gpu(UUIDS[2].upper()), (2,), "uuid"),
        ("node-0", gpu(UUIDS[7]), (), None),
        ("node-1", pci("00000000:1B:00.0"), (2,), "pci"),
        (None, pci("1b:00.0"), (), None),
        ("NODE-1.cluster.local", process(4001), (3,), "process"),
        ("node-1", process(400), (), None),
        ("node-1", HOST, (2, 3), "host"),
        ("node-2.other.domain", HOST, (4, 5), "host"),
        ("node", HOST, (), None),
        ("node-0", nic("mlx5_1", 1), (1,), "host"),
        ("node-0", nic("eth0"), (0, 1), "host"),
        ("node-2", nic("mlx5_1", 1), (4, 5), "host"),
        ("node-0", gpu_index(0), (1,), "pci"),
        ("node-0", gpu_index(7), (), None),
        (None, of_rank(3), (3,), "rank"),
        ("node-0", "pod:ml/train-0", (0, 1), "scheduler"),
        (None, "pod:ml/train-0", (0, 1), "scheduler"),
        ("node-1", "pod:ml/train-0", (), None),
        ("node-9", "pod:other/train-1", (), None),
        ("node-1", "pod:ml/train-1", (2, 3), "scheduler"),
        (None, "pod:other/train-0", (), None),
        (None, "job:4711", (0, 1, 2, 3), "scheduler"),
        ("node-1", "job:4711", (2, 3), "scheduler"),
        (None, "job:47", (), None),
        (None, of_rank(99), (), None),
        (None, HOST, (), None),
        ("node-0", "nonsense", (), None),
    ],
)
def test_evidence_is_tied_to_ranks(host: str | None, entity: str, ranks_of_it: tuple[int, ...], by: str | None) -> None:
    assert joins().ranks_of(host, entity) == (ranks_of_it, by)


def test_a_number_of_a_device_that_nothing_ties_is_assumed_to_be_the_local_rank() -> None:
    of = Joins({rank: RankIdentity(rank, local_rank=rank) for rank in range(4)}, dict.fromkeys(range(4), "node-0"))
    assert of.ranks_of(None, gpu_index(3)) == ((3,), "local_rank")


def test_a_rank_is_believed_where_nothing_else_ties() -> None:
    assert joins().ranks_of("elsewhere", process(1), 3) == ((3,), "rank")
    assert joins().ranks_of("elsewhere", process(1), 33) == ((), None)


def test_a_short_name_that_two_hosts_begin_with_is_nobodys() -> None:
    of = Joins({}, {0: "node-1.east", 1: "node-1.west", 2: "node-2.east"})
    assert of.on_host("node-1") == ()
    assert of.on_host("node-2") == (2,)
    assert of.on_host("node-2.east") == (2,)
