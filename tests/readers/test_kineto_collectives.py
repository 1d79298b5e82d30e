"""What the rows of a Kineto trace say of collectives, sends and receives: kind, group, number, peer."""

import polars as pl
import pytest
from support import kineto_builder as kb
from support.kineto_rows import ALL_REDUCE, kinds, read, row


def test_a_collective_s_own_arguments() -> None:
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 100,
        "Out msg nelems": 100,
        "dtype": "BFloat16",
        "Process Group Name": "dp_3",
        "Process Group Ranks": "[0, 4]",
        "Seq": 17,
    }
    rows, _ = read([kb.step(0, 0, 100), kb.kernel(ALL_REDUCE, 10, 5, 1, **args)])
    found = row(rows, ALL_REDUCE)
    assert (found["kind"], found["group"], found["group_seq"], found["bytes"]) == ("collective", "dp_3 [0, 4]", 17, 200)


@pytest.mark.parametrize(("name", "kind", "peer"), [("send", "send", 5), ("recv", "recv", 2), ("irecv", "recv", 2)])
def test_sends_and_receives_name_their_peer(name: str, kind: str, peer: int) -> None:
    args = {"Collective name": name, "Src Rank": 2, "Dst Rank": 5, "Process Group Name": "pp"}
    rows, _ = read([kb.step(0, 0, 100), kb.kernel("ncclDevKernel_SendRecv", 10, 5, 1, **args)])
    assert (row(rows, "ncclDevKernel_SendRecv")["kind"], row(rows, "ncclDevKernel_SendRecv")["peer"]) == (kind, peer)


def test_an_old_collective_takes_its_number_from_the_call_around_its_launch() -> None:
    pointer = "93825133356096"
    rows, _ = read(
        [
            kb.step(0, 0, 100),
            kb.op("record_param_comms", 5, 10, **{"Concrete Inputs": ["", "337", pointer, "3", "", "[]", "[]", "8"]}),
            kb.launch(8, 2, 1),
            kb.op("record_param_comms", 20, 10, **{"Concrete Inputs": ["337", "0", "3", "", "[]", "[]", "1"]}),
            kb.kernel(ALL_REDUCE, 50, 5, 1),
            kb.launch(60, 2, 2),
            kb.kernel("ncclDevKernel_AllGather", 70, 5, 2),
        ]
    )
    assert (row(rows, ALL_REDUCE)["group"], row(rows, ALL_REDUCE)["group_seq"]) == (None, 337)
    assert row(rows, "ncclDevKernel_AllGather")["group_seq"] is None
    assert rows.filter(pl.col("name") == "record_param_comms")["kind"].to_list() == ["host", "host"]


def gloo_events() -> list[kb.Event]:
    """Two all-reduces: queued on the main thread, timed on two workers."""
    dims = {"Input Dims": [[100]], "Input type": ["float"]}
    return [
        kb.step(0, 0, 1000),
        kb.op("aten::mm", 1, 50),
        kb.op("autograd::engine::evaluate_function: AccumulateGrad", 100, 100),
        kb.op("c10d::allreduce_", 110, 5),
        kb.op("c10d::allreduce_", 150, 5),
        kb.annotation("gloo:all_reduce", 160, 300, tid=301, **dims),
        kb.annotation("gloo:all_reduce", 120, 200, tid=302, **dims),
    ]


def test_on_a_cpu_the_timed_collective_is_the_one_and_operators_compute() -> None:
    config = {"pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]}
    rows, info = read(
        gloo_events(), distributedInfo={"backend": "gloo", "rank": 1, "world_size": 2, **config}, rank=None
    )
    found = rows.filter(pl.col("kind") == "collective").sort("start_ns")
    assert found["name"].to_list() == ["gloo:all_reduce"] * 2
    assert found.select("occurrence", "bytes", "phase", "group").rows() == [
        (0, 400, "backward", "0 [0, 1]"),
        (1, 400, "backward", "0 [0, 1]"),
    ]
    assert kinds(rows)["aten::mm"] == "compute"
    assert kinds(rows)["c10d::allreduce_"] == "host"
    assert not info.has_device
    assert (info.ranks, info.world_size) == ((1,), 2)


def test_an_operator_that_waits_for_communication_computes_nothing() -> None:
    events = [*gloo_events(), kb.op("_c10d_functional::wait_tensor", 470, 20)]
    of_device = [kb.launch(500, 2, 9), kb.kernel("gemm", 510, 5, 9)]
    for beside, kind in (([], "sync"), (of_device, "host")):
        rows, _ = read([*events, *beside])
        assert kinds(rows)["_c10d_functional::wait_tensor"] == kind


def test_gloo_has_a_device_s_tensor_once_it_has_been_copied_to_the_host() -> None:
    copies = [
        kb.launch(112, 2, 71, name="cudaMemcpyAsync"),
        kb.launch(152, 2, 72, name="cudaMemcpyAsync"),
        # The second copy's stream is done a little sooner; what the first brings back is none of the input.
        kb.event("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 210, 10, pid=0, tid=20, correlation=71),
        kb.event("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 205, 10, pid=0, tid=24, correlation=72),
        kb.launch(300, 2, 73, name="cudaMemcpyAsync", tid=302),
        kb.event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 303, 10, pid=0, tid=20, correlation=73),
    ]
    rows, info = read(gloo_events() + copies)
    found = rows.filter(pl.col("kind") == "collective").sort("start_ns")
    begin = rows["start_ns"].min()
    assert info.has_device
    assert [(start - begin, length) for start, length in found.select("start_ns", "duration_ns").rows()] == [
        (220_000, 100_000),
        (220_001, 239_999),
    ]
    assert found["occurrence"].to_list() == [0, 1]


def test_on_a_cpu_recorded_calls_name_the_timed_collectives_by_order() -> None:
    records = [
        kb.op("record_param_comms", ts, 5, **{"Process Group Name": "7", "Seq": seq, "Collective name": "allreduce"})
        for ts, seq in ((111, 1), (151, 2))
    ]
    rows, _ = read(gloo_events() + records)
    found = rows.filter(pl.col("kind") == "collective").sort("start_ns")
    assert found.select("group", "group_seq").rows() == [("7", 1), ("7", 2)]


EPOCH_US = 1_790_000_000_000_000


def issued(ts: float, number: int, group: str = "0", **other: object) -> dict[str, object]:
    """An entry of the flight recorder."""
    entry = {"process_group": [group, ""], "profiling_name": "gloo:all_reduce", "collective_seq_id": number}
    return entry | {"time_created_ns": (EPOCH_US + int(ts)) * 1000, "is_p2p": False, **other}


def timed(ts: float, tid: int) -> kb.Event:
    return kb.annotation("gloo:all_reduce", ts, 20, tid=tid)


def numbered(timed_rows: list[kb.Event], entries: list[dict[str, object]]) -> list[tuple[str | None, int | None]]:
    """Group and number of a captured window's collectives, in order of their begins."""
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]},
        {"pg_name": "3", "pg_desc": "", "ranks": [0, 2]},
    ]
    info = {"backend": "gloo", "rank": 0, "world_size": 4, "pg_config": groups}
    base = {"baseTimeNanoseconds": EPOCH_US * 1000}
    events = [kb.step(0, 0, 90_000), kb.op("aten::mm", 1, 50), *timed_rows]
    rows, _ = read(events, distributedInfo=info, kair={"collectives": entries}, rank=None, **base)
    return rows.filter(pl.col("kind") == "collective").sort("start_ns").select("group", "group_seq").rows()


def test_the_flight_recorders_entries_number_gloos_collectives() -> None:
    world, pair = "0 [0, 1]", "3 [0, 2]"
    rows = [timed(110, 31), timed(160, 32), timed(5210, 31)]
    sends = issued(130, 1, is_p2p=True)
    assert numbered(rows, [issued(5200, 9), issued(100, 7), sends, issued(150, 8)]) == [
        (world, 7),
        (world, 8),
        (world, 9),
    ]
    # The recorder keeps the last entries: what is older stays without.
    assert numbered(rows, [issued(5200, 9)]) == [(None, None), (None, None), (world, 9)]
    # Two groups' threads took up two calls in another order than they were issued: a thread is of one group.
    rows = [timed(at, tid) for at, tid in ((110, 31), (120, 41), (5110, 31), (5130, 41), (9110, 41), (9120, 31))]
    order = [(100, 7, "0"), (102, 4, "3"), (5100, 8, "0"), (5102, 5, "3"), (9100, 9, "0"), (9102, 6, "3")]
    assert numbered(rows, [issued(*one) for one in order]) == [
        (world, 7), (pair, 4), (world, 8), (pair, 5), (pair, 6), (world, 9)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "entries",
    [
        [issued(100, 7)],
        [issued(100, 7), issued(110, 8), issued(120, 9)],
        [issued(100, 7), issued(50_000, 8)],
        [issued(100, 7, "9"), issued(150, 8, "9")],
        [issued(100, 7), issued(150, -8)],
        [{"process_group": 3}, "x", {**issued(1, 1), "time_created_ns": "1"}],
    ],
)
def test_entries_that_do_not_fit_number_nothing(entries: list[dict[str, object]]) -> None:
    assert numbered([timed(110, 31), timed(160, 32)], entries) == [(None, None)] * 2


def test_on_a_cpu_without_timed_collectives_the_calls_stand_for_them() -> None:
    rows, _ = read([one for one in gloo_events() if not one["name"].startswith("gloo")])
    assert kinds(rows)["c10d::allreduce_"] == "collective"
