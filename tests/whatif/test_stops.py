"""Stops of threads: told from slow operators by an operation's own usual time, and priced; times in µs."""

from pathlib import Path

import pytest
from support.trace_builder import trace

from kair_engine.results.fix import Fix
from kair_engine.results.whatif import HostStops
from kair_engine.trace.model import Trace
from kair_engine.trace.steps import loading
from kair_engine.whatif.model import Baseline, Undisturbed
from kair_engine.whatif.models import model_of
from kair_engine.whatif.operators import batches

STEPS, RANKS = 6, 4
USUAL = 500


def steps(folder: Path, took: dict[tuple[int, int], float], *, usual: dict[int, float] | None = None) -> Trace:
    """Each rank's thread runs an operator of 500 µs and one of 300, then all meet for 100 µs; an update takes 50.

    `took` says by (step, rank) how long the first one takes instead, `usual` by rank how long it always does.
    """
    lines = []
    for step in range(STEPS):
        begin = step * 100_000
        first = {rank: took.get((step, rank), (usual or {}).get(rank, USUAL)) for rank in range(RANKS)}
        end = begin + max(first.values()) + 300 + 100
        lines.append(f"step {step}: {begin}+{end + 50 - begin}")
        for rank, length in first.items():
            at = begin + length + 300
            lines.append(f"{rank} main | mm {begin}+{length} | relu {begin + length}+300")
            lines.append(f"{rank} th2 | allreduce@dp#{step} {at}+{end - at}")
            lines.append(f"{rank} main | update {end}+50")
    return trace(folder, "\n".join(lines))


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
