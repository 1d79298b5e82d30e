"""Events and changes near the begin of a finding: the nearest, on whom, on how many others, what came first."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from kair_engine.evidence.course import Course
from kair_engine.evidence.happenings import WITHIN_S, happenings, onsets_of
from kair_engine.evidence.joining import Joins
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Happening
from kair_engine.results.triage import Finding
from kair_engine.trace.evidence_table import EvidenceFile, EvidenceRows
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.measures import HOST, EvidenceSource, gpu, nic

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND
HOSTS = {rank: f"node-{rank // 8}" for rank in range(32)}
DEVICES = [gpu(f"GPU-000000{rank:02x}-1111-2222-3333-444444444444") for rank in range(32)]
JOINS = Joins(
    {
        rank: RankIdentity(rank, host=host, device=DeviceIdentity(DEVICES[rank].removeprefix("gpu:")))
        for rank, host in HOSTS.items()
    },
    HOSTS,
)
KERNEL_LOG = EvidenceSource(
    "kern.log", "kernel log", "unix", bound_s=5.0, observes=("xid",), hosts=("node-0", "node-1")
)


def finding(*ranks: int) -> Finding:
    return Finding(
        "compute", "persistent", tuple(map(Rank, ranks)), (), None, None, (1,), 1e-9, 1.0, 1.1, (), since=41_200
    )


def found(
    rows: EvidenceRows,
    source: EvidenceSource = KERNEL_LOG,
    *,
    accused: tuple[int, ...] = (3,),
    onsets: Mapping[int, tuple[int, int]] | None = None,
    downstream: tuple[int, ...] = (),
) -> tuple[Happening, ...]:
    onsets = {1: (BEGIN, SECOND)} if onsets is None else onsets
    return happenings((finding(*accused),), EvidenceFile(rows.table(), (source,)), JOINS, onsets, downstream)


def xids(*told: tuple[float, int, int]) -> EvidenceRows:
    """(seconds before the begin, rank, code)."""
    rows = EvidenceRows()
    for before, rank, code in told:
        rows.add(int(BEGIN - before * SECOND), DEVICES[rank], "xid", code, host=HOSTS[rank], raw="kern.log:7")
    return rows


def test_an_event_before_the_begin_is_told_with_its_distance_and_its_silence_on_others() -> None:
    (one,) = found(xids((11, 3, 63)))
    assert (one.name, one.value, one.ranks, one.before_s, one.bound_ns) == ("xid", 63, (3,), 11.0, 5 * SECOND)
    assert (one.on_accused, one.on_others, one.others_observed, one.order_known) == (True, 0, 15, True)
    assert (one.finding, one.raw) == (1, "kern.log:7")


@pytest.mark.parametrize(
    ("before", "is_told", "order_known"),
    [
        (6.5, True, True),
        (5.5, True, False),
        (-5.5, True, False),
        (-6.5, False, False),
        (WITHIN_S + 5, True, True),
        (WITHIN_S + 7, False, False),
    ],
)
def test_order_is_told_beyond_the_bounds_and_what_surely_came_after_is_not(
    before: float, is_told: bool, order_known: bool
) -> None:
    assert [one.order_known for one in found(xids((before, 3, 63)))] == ([order_known] if is_told else [])


def test_without_a_bound_no_order_is_told() -> None:
    (one,) = found(xids((120, 3, 63)), EvidenceSource("log", "kernel log"))
    assert not one.order_known
    assert one.bound_ns == 60 * SECOND


def test_the_nearest_before_stands_for_all_that_are_the_same() -> None:
    (one,) = found(xids((100, 3, 63), (20, 3, 63), (-2, 3, 63)))
    assert one.before_s == 20.0


def test_many_reporters_of_one_code_are_counted_and_the_cause_goes_before_what_follows() -> None:
    """63 of 64 devices log the downstream XID 145, one the cause 149 (marin#9086)."""
    rows = xids(*((10, rank, 145) for rank in range(32)), (12, 3, 149))
    cause, follows = found(rows, downstream=(145,))
    assert (cause.value, cause.on_others) == (149, 0)
    assert (follows.value, follows.on_others, follows.ranks) == (145, 31, (3,))


def test_another_code_on_others_is_another_event_and_comes_last() -> None:
    mine, theirs = found(xids((60, 3, 63), (2, 9, 31)))
    assert (mine.value, mine.on_accused, mine.on_others) == (63, True, 0)
    assert (theirs.value, theirs.on_accused, theirs.ranks) == (31, False, (9,))


def test_texts_that_differ_in_numbers_are_the_same_event() -> None:
    rows = EvidenceRows()
    for rank, pid in ((3, 4711), (11, 815)):
        rows.add(BEGIN - SECOND, HOST, "oom_kill", text=f"Killed process {pid} (python)", host=HOSTS[rank])
    (one,) = found(rows)
    assert (one.text, one.ranks, one.on_others) == ("Killed process 4711 (python)", tuple(range(8)), 8)


def test_an_event_of_nobody_that_is_known_is_told_as_such() -> None:
    rows = EvidenceRows()
    rows.add(BEGIN - SECOND, HOST, "node_state", text="drained", host="elsewhere")
    (one,) = found(rows)
    assert (one.ranks, one.on_accused, one.on_others, one.host) == ((), False, 0, "elsewhere")


def readings(entity: str, name: str, *values: float, host: str = "node-0") -> EvidenceRows:
    """Ten seconds apart, the last one at the begin."""
    rows = EvidenceRows()
    for place, value in enumerate(values):
        rows.add(BEGIN + (place - len(values) + 1) * 10 * SECOND, entity, name, value, host=host)
    return rows


def test_a_gauge_that_stays_as_it_is_tells_when_it_changes() -> None:
    rows = readings(DEVICES[3], "gpu_pcie_width", 16, 16, 8, 8)
    (one,) = found(rows)
    assert (one.value, one.ranks, one.before_s) == (8, (3,), 15.0)
    assert one.bound_ns == 10 * SECOND  # five of the clock, five between the readings
    assert one.order_known


def test_what_was_there_before_is_no_change() -> None:
    assert [one.value for one in found(readings(DEVICES[3], "gpu_pcie_generation", 1, 5, 1, 5))] == [5]
    assert found(readings(DEVICES[3], "gpu_pcie_generation", 5, 5, 5)) == ()


def test_a_state_that_changes_is_told_and_one_of_a_running_measure_is_not() -> None:
    rows = EvidenceRows()
    for before, state, clock in ((30, "ACTIVE", 1755), (10, "DOWN", 1395)):
        rows.add(BEGIN - before * SECOND, nic("mlx5_3", 1), "nic_state", text=state, host="node-0")
        rows.add(BEGIN - before * SECOND, DEVICES[3], "gpu_sm_clock", clock, host="node-0")
    (one,) = found(rows)
    assert (one.name, one.text, one.ranks) == ("nic_state", "DOWN", tuple(range(8)))


def test_peers_with_readings_that_stayed_are_observed() -> None:
    rows = readings(DEVICES[3], "gpu_pcie_width", 16, 8)
    rows.add(BEGIN, DEVICES[9], "gpu_pcie_width", 16, host="node-1")
    (one,) = found(rows, EvidenceSource("dcgm", "dcgm", bound_s=1.0))
    assert (one.on_others, one.others_observed) == (0, 1)


def test_a_job_wide_finding_accuses_nobody_and_still_has_its_events() -> None:
    (one,) = found(xids((11, 3, 63)), accused=())
    assert (one.on_accused, one.ranks) == (False, (3,))


def test_a_finding_began_with_its_step_and_a_stop_after_the_last_one() -> None:
    steps = np.array([41_199, 41_200, 41_201])
    begins = BEGIN + np.arange(-1, 2) * SECOND
    course = Course(np.array([3]), steps, begins, begins + SECOND // 2, None, 5e5)
    slow, always, stopped = (
        finding(3),
        replace(finding(3), since=None),
        replace(finding(3), cause="hang", since=None),
    )
    of = onsets_of((slow, always, replace(slow, since=7), stopped), course)
    assert of == {1: (BEGIN, SECOND // 2), 4: (BEGIN + SECOND + SECOND // 2, SECOND // 2)}


def test_without_a_known_begin_nothing_is_near() -> None:
    assert found(xids((11, 3, 63)), onsets={}) == ()
    assert found(EvidenceRows()) == ()
