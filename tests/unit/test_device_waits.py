"""What devices wait for: launches one after the other, and devices that others have; tables by hand, in µs."""

from pathlib import Path

import pytest
from support.trace_builder import operations, trace

from kair_engine.results.triage import Finding
from kair_engine.timeline.account import KINDS, WHEN, AccountOfSteps
from kair_engine.trace.operations import Operations
from kair_engine.triage.analysis import triage


def launches(folder: Path, kernel: float, *, begins: list[float] | None = None, latency: float = 1) -> Operations:
    """Six launches of 5 µs, 10 µs apart or at `begins`; each kernel begins so long after its launch or the last."""
    lines, free = ["step 0: 0+1000"], 0.0
    for call, begin in enumerate(begins or [10.0 * call for call in range(6)]):
        start = max(free, begin + 5 + latency)
        lines += [f"0 main | launch {begin}+5 ^{call}", f"0 gpu7 | add {start}+{kernel} ^{call}"]
        free = start + kernel
    return operations(folder, "\n".join(lines))


def spent(ops: Operations) -> dict[str, list[float]]:
    """What each rank spends of the step in launches that follow one another, and on what was launched and waits."""
    rows = AccountOfSteps().of_step(ops, None)
    sums = rows.sums(len(ops.ranks)) / 1e3
    assert sums.sum(axis=(0, 1)).tolist() == pytest.approx((ops.length_ns / 1e3).tolist())
    launches = sums[:, WHEN.index("launches")].sum(axis=0)
    return {"launches": launches.tolist(), "queued": sums[KINDS.index("queued")].sum(axis=0).tolist()}


def test_a_device_idles_between_launches_that_follow_one_another(tmp_path: Path) -> None:
    """From the first launch to the last one's end 55 µs; six kernels of 2 µs begin 1 µs late, five of them within."""
    assert spent(launches(tmp_path, 2))["launches"] == [55 - 5 * 3]


@pytest.mark.parametrize(
    ("kernel", "begins", "idle"),
    [(20.0, None, 5), (2.0, [0.0, 200, 400, 600, 800, 900], 5)],
    ids=["kernels take longer than launches", "the host does something else in between"],
)
def test_what_launches_do_not_hold_up(tmp_path: Path, kernel: float, begins: list[float] | None, idle: float) -> None:
    """But for the first launch, before which the device has nothing to run."""
    assert spent(launches(tmp_path, kernel, begins=begins))["launches"] == [idle]


def test_each_rank_idles_between_its_own_launches(tmp_path: Path) -> None:
    """Three launches each, rank 1's in the step's first 30 µs, rank 0's 70 µs later: 8 µs between two kernels."""
    lines = ["step 0: 0+100"]
    for call in range(3):
        for rank, begin in ((1, 10 * call), (0, 70 + 10 * call)):
            lines.append(f"{rank} main | launch {begin}+5 ^{call}")
            lines.append(f"{rank} gpu7 | add {begin + 6}+2 ^{call}")
    assert spent(operations(tmp_path, "\n".join(lines)))["launches"] == [2 * 7, 5 + 2 * 7]


def test_clocks_of_decades_apart_tell_as_much_as_one(tmp_path: Path) -> None:
    """Seven ranks do the same; the recordings of three do not say when they began, and count from 0."""
    decades, lines = 1_700_000_000_000_000, []
    for rank in range(7):
        at = 0 if rank < 3 else decades
        lines.append(f"{rank} step | {at}+1000")
        for call in range(6):
            lines.append(f"{rank} main | launch {at + 10 * call}+5 ^{call}")
            lines.append(f"{rank} gpu7 | add {at + 10 * call + 6}+2 ^{call}")
    found = spent(operations(tmp_path, "\n".join(lines)))
    assert found == {"launches": pytest.approx([55 - 5 * 3] * 7, abs=0.5), "queued": [0] * 7}


@pytest.mark.parametrize(
    ("between", "waited"),
    [("", 595), ("| 0 gpu8 | copy 5+590", 0), ("| 0 gpu8 | copy 5+300", 295), ("| 0 gpu7 | relu 2+580 ^2", 0)],
    ids=["nothing runs", "another stream works", "until in between", "its own stream works"],
)
def test_what_is_launched_waits_for_a_device_that_others_have(tmp_path: Path, between: str, waited: float) -> None:
    more = between.removeprefix("| ")
    ops = operations(tmp_path, f"step 0: 0+1000\n0 main | launch 0+5 ^1\n{more}\n0 gpu7 | add 600+10 ^1")
    assert spent(ops)["queued"] == [waited]


def test_what_a_launch_takes_anyway_is_no_wait(tmp_path: Path) -> None:
    assert spent(launches(tmp_path, 2, latency=90))["queued"] == [0]


STEPS, RANKS = 8, 4


def job(folder: Path, *, kernels: int, latency: float = 1, more: int = 0, slower: float = 0) -> tuple[Finding, ...]:
    """Four ranks launch kernels of 2 µs, 10 µs apart, and wait for them, then meet.

    Rank 3 launches `more`, and so many µs farther apart.
    """
    lines = []
    for step in range(STEPS):
        begin = step * 10_000
        lines.append(f"step {step}: {begin}+{2000}")
        ends = {}
        for rank in range(RANKS):
            last = rank == RANKS - 1
            count, apart = kernels + (more if last else 0), 10 + (slower if last else 0)
            for call in range(count):
                at, name = begin + apart * call, f"^{step * 1000 + call}"
                lines.append(f"{rank} main | aten::add_ {at}+6 | launch {at + 1}+4 {name}")
                lines.append(f"{rank} gpu7 | add {at + 5 + latency}+2 {name}")
            ends[rank] = begin + apart * count + latency
            waited = latency + 2
            lines.append(f"{rank} main | cudaStreamSynchronize {ends[rank] - waited + 1}+{waited} :sync")
        for rank, end in ends.items():
            lines.append(f"{rank} gpu7 | allreduce@dp#{step} {end + 10}+{max(ends.values()) - end + 100}")
    return triage(trace(folder, "\n".join(lines))).findings


@pytest.mark.slow
def test_a_job_bound_by_launches_is_told_with_what_shows_it(tmp_path: Path) -> None:
    (found,) = job(tmp_path, kernels=60)
    assert (found.cause, found.pattern, found.ranks) == ("launch_bound", "job_wide", ())
    (shown,) = (one for one in found.evidence if one.kind == "one_by_one")
    # Of the 10 µs from launch to launch a kernel runs for 2, and begins 1 after its launch; 3 pass before the first.
    assert shown.figures["idle_us"] == pytest.approx(59 * 7 + 4)
    assert found.time_lost_us_per_step == pytest.approx(59 * 7 + 4)


def test_more_launches_on_one_rank_are_uneven_work_and_not_its_host(tmp_path: Path) -> None:
    """Each of its 60 more kernels keeps the device waiting; one is hardly computing."""
    of_rank = [one for one in job(tmp_path, kernels=20, more=60) if one.ranks]
    assert [(one.ranks, one.cause, one.operator) for one in of_rank] == [((3,), "uneven_work", "add")]
    (shown,) = (one for one in of_rank[0].evidence if one.kind == "launches_more")
    assert (shown.figures["calls"], shown.figures["usual_calls"]) == (80, 20)
    assert of_rank[0].fix[0].kinds == ("compute", "host")


@pytest.mark.slow
def test_slower_launches_of_one_rank_are_told_from_a_host_that_pauses(tmp_path: Path) -> None:
    """60 launches 25 instead of 10 µs apart."""
    (of_rank,) = (one for one in job(tmp_path, kernels=60, slower=15) if one.ranks)
    assert (of_rank.ranks, of_rank.cause) == ((3,), "launch_bound")
    (shown,) = (one for one in of_rank.evidence if one.kind == "slower_launches")
    assert shown.figures["idle_us_per_step"] - shown.figures["peers_us_per_step"] == pytest.approx(59 * 15, rel=0.02)
    assert of_rank.time_lost_us_per_step == pytest.approx(60 * 15, rel=0.05)


def test_a_device_that_others_have_is_told_and_priced_by_what_waited_for_it(tmp_path: Path) -> None:
    """One kernel a step waits for 400 µs, and the host for that."""
    (found,) = (one for one in job(tmp_path, kernels=1, latency=400) if one.cause == "device_contention")
    (taken,) = (one for one in found.evidence if one.kind == "device_taken")
    assert taken.figures["waited_us"] == pytest.approx(400)
    (between,) = (one for one in found.evidence if one.kind == "price_range")
    assert found.time_lost_us_per_step == pytest.approx(400)
    assert between.figures["least_us"] <= 400 <= between.figures["most_us"]
