"""Stops of threads: told from slow operators by an operation's own usual time, and priced; times in µs."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.stopping_threads import ALL, RANKS, STEPS, USUAL, measured, steps
from support.trace_builder import trace

from kair_engine.results.whatif import Fix, HostStops
from kair_engine.trace import loading
from kair_engine.trace.model import StepTimes, Trace
from kair_engine.whatif.analysis import model_of
from kair_engine.whatif.model import Baseline, Undisturbed
from kair_engine.whatif.operators import batches


def stops(made: Trace) -> HostStops | None:
    return model_of(made).host_stops()


@pytest.mark.parametrize(("thread", "stands_still"), [("th9", False), ("main", True)])
def test_beside_a_device_only_the_program_s_threads_stand_still(
    tmp_path: Path, thread: str, stands_still: bool
) -> None:
    lines = []
    for step in range(STEPS):
        begin, wait = step * 100_000, 9000 if step == 3 else 300
        lines.append(f"step {step}: {begin}+20000")
        for rank in range(RANKS):
            correlation = step * RANKS + rank
            lines.append(f"{rank} main | launch {begin}+10 ^{correlation}")
            lines.append(f"{rank} gpu7 | gemm {begin + 20}+100 ^{correlation}")
            lines.append(f"{rank} {thread} | copy {begin + 200}+50 | copy {begin + 250 + wait}+50")
    assert (stops(trace(tmp_path, "\n".join(lines))) is not None) == stands_still


def test_an_operation_that_once_takes_far_longer_than_usual_stood_still(tmp_path: Path) -> None:
    found = stops(steps(tmp_path, {(2, 1): USUAL + 6000}))
    assert found is not None
    # One stop of 6 ms on one of four ranks, in one of six steps.
    assert found.per_step == pytest.approx(1 / 24)
    assert found.median_us == found.longest_us == pytest.approx(6000)
    assert found.by_rank_us == pytest.approx({0: 0, 1: 1000, 2: 0, 3: 0})
    assert found.inside_by_rank_us == pytest.approx(found.by_rank_us)
    assert found.slowest_rank_us == pytest.approx(1000)


def test_all_ranks_standing_still_is_seen_though_no_peer_shows_it(tmp_path: Path) -> None:
    together = {(2, rank): USUAL + 6000.0 for rank in range(RANKS)}
    found = stops(steps(tmp_path, together))
    assert found is not None
    assert found.by_rank_us == pytest.approx(dict.fromkeys(range(RANKS), 1000))


def test_an_operator_that_is_slow_on_one_rank_in_all_steps_is_no_stop(tmp_path: Path) -> None:
    assert stops(steps(tmp_path, {}, usual={1: USUAL + 6000})) is None


def test_a_stop_of_a_slow_rank_counts_from_what_is_usual_there(tmp_path: Path) -> None:
    found = stops(steps(tmp_path, {(2, 1): 3500 + 6000}, usual={1: 3500}))
    assert found is not None and found.longest_us == pytest.approx(6000)


@pytest.mark.parametrize("longer", [0, 900], ids=["as usual", "less than a millisecond"])
def test_what_is_no_stop(tmp_path: Path, longer: float) -> None:
    assert stops(steps(tmp_path, {(2, 1): USUAL + longer})) is None


def test_an_operation_that_takes_half_as_much_more_has_not_stood_still(tmp_path: Path) -> None:
    slow = dict.fromkeys(range(RANKS), 20_000.0)
    assert stops(steps(tmp_path / "0", {(2, 1): 29_000}, usual=slow)) is None
    assert stops(steps(tmp_path / "1", {(2, 1): 31_000}, usual=slow)) is not None


def test_an_operation_whose_time_varies_anyway_has_not_stood_still(tmp_path: Path) -> None:
    """The fast ones take 2 ms less than what is usual: 7 ms more are less than four times that."""
    varied = {(step, rank): 10_000.0 for step in range(STEPS) for rank in range(RANKS)} | {(0, 0): 8000, (0, 1): 8000}
    assert stops(steps(tmp_path / "0", {**varied, (2, 1): 10_000 + 7000})) is None
    steady = dict.fromkeys(varied, 10000.0)
    assert stops(steps(tmp_path / "1", {**steady, (2, 1): 10_000 + 7000})) is not None


def test_the_fix_of_stops_takes_away_what_was_lost_in_them(tmp_path: Path) -> None:
    model = model_of(steps(tmp_path, {(2, 1): USUAL + 6000, (2, 3): USUAL + 4000, (4, 0): USUAL + 3000}))
    assert "stops" in model.kinds
    fixes = [(Fix(kinds=("stops",)),), (Fix(ranks=(1,), kinds=("stops",)),), (Fix(ranks=(2,), kinds=("stops",)),)]
    recorded, of_all, of_one, of_none = (
        (times / 1e3).tolist() for times in model.replay([Baseline.RECORDED, *fixes]).times
    )
    assert recorded == pytest.approx([950, 950, 6950, 950, 3950, 950])
    assert of_all == pytest.approx([950] * 6)
    # Rank 3 is next, 2 ms earlier than rank 1 was.
    assert of_one == pytest.approx([950, 950, 4950, 950, 3950, 950])
    assert of_none == pytest.approx(recorded)


def test_what_stops_will_be_asked_of_is_replayed_while_the_steps_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three of six steps show the stop; the others are read after them, and none is read again."""
    made = steps(tmp_path, {(2, 1): USUAL + 6000, (4, 1): USUAL + 4000})
    read: list[int] = []
    read_rows = loading.read_rows
    monkeypatch.setattr(batches, "_ENOUGH_PEERS", 0)
    monkeypatch.setattr(batches, "_ROWS_AT_ONCE", sum(made.job.step_times.operations) // 2 + 3 * RANKS)
    monkeypatch.setattr(loading, "read_rows", lambda trace, of: read.extend(of) or read_rows(trace, of))
    fix, told = (Fix(kinds=("stops",)),), list[float]()

    def foreseen(stopped: HostStops | None) -> list[tuple[Fix]]:
        told.append(0.0 if stopped is None else stopped.longest_us)
        return [fix]

    model = model_of(made)
    model.replay([Baseline.RECORDED], foreseen)
    assert told == pytest.approx([6000])
    without = model.replay([fix]).times
    assert read == list(range(STEPS))
    assert (without == model_of(made).replay([fix]).times).all()


def test_where_threads_communicate_beside_a_device_stops_are_also_taken_from_what_waits_for_them(
    tmp_path: Path,
) -> None:
    """A thread that carries collectives stands still for 9 ms in step 3; the program's thread does in step 5."""
    lines = []
    for step in range(STEPS):
        begin, carried = step * 100_000, 9000 if step == 3 else 0
        slow = 9000 if step == 5 else 0
        end = begin + 1000 + slow
        lines.append(f"step {step}: {begin}+{end + 200 + carried - begin}")
        for rank in range(RANKS):
            mark = step * RANKS + rank
            lines.append(f"{rank} main | launch {begin}+10 ^{mark} | copy {begin + 50}+{100 + slow}")
            lines.append(f"{rank} gpu7 | gemm {begin + 20}+900 ^{mark}")
            lines.append(f"{rank} th2 | allreduce@dp#{step} {end}+{100 + carried}")
            lines.append(f"{rank} main | update {end + 100 + carried}+50")
    model = model_of(trace(tmp_path, "\n".join(lines)))
    asked = [Baseline.RECORDED, Undisturbed.THREADS_RUN, (Fix(kinds=("stops",)),), Undisturbed.USUAL]
    recorded, threads, everywhere, usual = (times / 1e3 for times in model.replay(asked).times)
    assert (recorded - threads).tolist() == pytest.approx([0, 0, 0, 0, 0, 9000])
    assert (recorded - everywhere).tolist() == pytest.approx([0, 0, 0, 9000, 0, 9000], abs=1)
    assert usual.tolist() == pytest.approx(everywhere.tolist())


def saved_us(made: Trace, *fixes: Fix) -> list[list[float]]:
    recorded, *without = model_of(made).replay([Baseline.RECORDED, *((fix,) for fix in fixes)]).times / 1e3
    return [(recorded - times).tolist() for times in without]


STOPS = Fix(kinds=("stops",))


def test_what_looks_like_a_stop_is_none_where_the_thread_computed_all_the_while(tmp_path: Path) -> None:
    made = steps(tmp_path, {(2, 1): USUAL + 6000})
    found = stops(measured(made, {(2, 1): 6950}, {}))
    assert found is not None and found.cores is not None
    assert (found.per_step, found.share_of_step, found.cores.lost_by_rank_us[1]) == (0, 0, 0)
    assert saved_us(measured(made, {(2, 1): 6950}, {}), STOPS) == [pytest.approx([0] * 6)]


def test_a_stop_counts_as_far_as_the_thread_did_not_compute(tmp_path: Path) -> None:
    """It looks like 6 ms. Of those 2 ms were computed: it was stopped for 4."""
    made = steps(tmp_path, {(2, 1): USUAL + 6000})
    told = measured(made, {(2, 1): 2950}, {})
    assert saved_us(told, STOPS) == [pytest.approx([0, 0, 4000, 0, 0, 0])]
    found = stops(told)
    assert found is not None and found.cores is not None
    assert found.cores.lost_by_rank_us == pytest.approx({0: 0, 1: 4000 / 6, 2: 0, 3: 0})
    assert found.cores.ready_by_rank_us == pytest.approx(dict.fromkeys(range(RANKS), 0))


def test_what_is_slow_at_all_times_for_want_of_a_core_is_priced_as_measured(tmp_path: Path) -> None:
    """All ranks take 40 ms for what needs 10: nothing stands out, no peer and no other step."""
    made = steps(tmp_path, {}, usual=dict.fromkeys(range(RANKS), 40_000.0), meet=2000)
    assert stops(made) is None
    told = measured(made, dict.fromkeys(ALL, 40_350), dict.fromkeys(ALL, 30_000))
    of_all, of_one = saved_us(told, STOPS, Fix(ranks=(2,), kinds=("stops",)))
    assert of_all == pytest.approx([30_000] * 6)
    assert of_one == pytest.approx([0] * 6)
    found = stops(told)
    assert found is not None and found.cores is not None
    assert found.cores.ready_by_rank_us == pytest.approx(dict.fromkeys(range(RANKS), 30_000))
    assert found.cores.computed_by_rank_us == pytest.approx(dict.fromkeys(range(RANKS), 10_350))
    assert found.per_step == 0


def test_no_more_is_taken_than_there_is(tmp_path: Path) -> None:
    """What a thread lacked when it had waited for others is in no operation of its own."""
    told = measured(steps(tmp_path, {}), {}, dict.fromkeys(ALL, 5000))
    assert saved_us(told, STOPS) == [pytest.approx([850] * 6)]


def test_at_most_transfers_are_shorter_by_what_their_threads_lacked(tmp_path: Path) -> None:
    """The collective takes 2 ms once all are there; gloo's thread was ready without a core for 600 µs of them."""
    made, own = steps(tmp_path, {}, meet=2000), dict.fromkeys(ALL, USUAL + 350.0)
    for lacked, saved in ((600, 600), (7000, 2000)):
        model = model_of(measured(made, own, {}, communication=lacked))
        asked = [Baseline.RECORDED, Undisturbed.THREADS_RUN, (STOPS,), Undisturbed.ENOUGH_CORES]
        recorded, threads, fixed, most = model.replay(asked).times / 1e3
        assert threads.tolist() == fixed.tolist() == pytest.approx(recorded.tolist())
        assert (recorded - most).tolist() == pytest.approx([saved] * 6)


def test_ranks_that_were_not_measured_keep_what_looks_like_stops(tmp_path: Path) -> None:
    made = steps(tmp_path, {(2, 1): USUAL + 6000, (4, 0): USUAL + 3000})
    told = measured(made, {(2, 1): 6950, (4, 0): 3950}, {})
    rows = [(*row[:5], *((-1,) * len(row[5:]) if row[0] == 0 else row[5:])) for row in told.job.step_times.rows()]
    some = replace(told, job=replace(told.job, step_times=StepTimes.of_rows(rows)))
    assert saved_us(some, STOPS) == [pytest.approx([0, 0, 0, 0, 3000, 0])]
    found = stops(some)
    assert found is not None and found.cores is None
