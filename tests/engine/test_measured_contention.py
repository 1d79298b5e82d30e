"""Lack of cores in captured jobs: told, explained and priced by what the kernel measured; ms by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.stopping_threads import ALL, RANKS, STEPS, USUAL, measured, steps

from kair_engine.localize.analysis import localize
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.whatif import Fix
from kair_engine.trace.model import ProcessorLimits, SentToHost, StepTimes, Trace
from kair_engine.triage import undoing
from kair_engine.triage.analysis import triage
from kair_engine.whatif.analysis import whatif
from kair_tui.render.sentences import sentence_of
from kair_tui.render.warnings import warnings_in_words

SLOW = dict.fromkeys(range(RANKS), 40_000.0)
OWN = dict.fromkeys(ALL, 40_350.0)


def slow_for_want_of_cores(folder: Path, ready: float = 30_000) -> Trace:
    """All ranks take 40 ms for what needs 10, in every step alike, and meet for 2 ms."""
    return measured(steps(folder, {}, usual=SLOW, meet=2000), OWN, dict.fromkeys(ALL, ready), communication=500)


def contention(result: TriageResult) -> Finding:
    (found,) = [one for one in result.findings if one.cause == "contention"]
    return found


def test_what_is_slow_at_all_times_on_all_ranks_is_told_and_priced_as_measured(tmp_path: Path) -> None:
    made = slow_for_want_of_cores(tmp_path)
    result = triage(made)
    found = contention(result)
    assert (result.verdict, found.pattern, found.ranks, found.seen_on) == ("job_wide", "job_wide", (), (0, 1, 2, 3))
    assert found.time_lost_us_per_step == pytest.approx(30_000)
    figures = {one.kind: one.figures for one in found.evidence}
    assert figures["price_range"] == pytest.approx({"least_us": 30_000, "most_us": 30_500})
    assert sentence_of(next(one for one in found.evidence if one.kind == "no_core")) == (
        "measured by the kernel: an average rank was ready but had no core for 30.0 ms of each step of 42.4 ms "
        "(30.0 ms to 30.0 ms)"
    )
    (cost,) = whatif(made, fixes=[Fix(kinds=("stops",))]).fixes
    assert cost.saved_us == pytest.approx(found.time_lost_us_per_step)


@pytest.mark.slow
def test_cores_that_ranks_lack_for_threads_of_their_own_may_be_saved_in_part_only(tmp_path: Path) -> None:
    """Four ranks may run on two cores, and each computes 10.35 ms itself and 8 ms in other threads of 42.4 ms a step.

    So they use 86.6 % of their cores themselves, and helpers compute for 8 of the 30 ms that a rank lacks a core.
    """
    own_and_helpers = measured(
        steps(tmp_path, {}, usual=SLOW, meet=2000), OWN, dict.fromkeys(ALL, 30_000), communication=500, helpers=8000
    )
    limits = dict.fromkeys(range(RANKS), ProcessorLimits(cpus=(0, 1)))
    figures = {one.kind: one.figures for one in contention(triage(with_limits(own_and_helpers, limits))).evidence}
    assert figures["price_range"] == pytest.approx(
        {"least_us": 30_000 * (1 - 8 / 30 * 0.866), "most_us": 30_500}, rel=1e-3
    )
    assert "own_threads" not in figures
    more = replace(own_and_helpers.job.step_times, helpers_cpu_ns=(30_000_000,) * RANKS * STEPS)
    many = replace(own_and_helpers, job=replace(own_and_helpers.job, step_times=more))
    result = contention(triage(with_limits(many, dict.fromkeys(range(RANKS), ProcessorLimits(cpus=(0, 1, 2, 3))))))
    (told,) = [one for one in result.evidence if one.kind == "own_threads"]
    assert sentence_of(told) == (
        "ranks lack cores for their helper threads (OpenMP's, say), which compute 30.0 ms a step on an average rank; "
        "4 ranks of a host use 95.3 % of the 4 cores that they may run on; fewer threads would have the same work to "
        "do, and save less"
    )
    assert result.time_lost_us_per_step == pytest.approx(30_000)  # with a core for each
    # Where it is not known which cores they may use, others may have had them.
    unknown = {one.kind: one.figures for one in contention(triage(many)).evidence}
    assert "own_threads" not in unknown and unknown["price_range"]["least_us"] == pytest.approx(30_000)


def with_limits(made: Trace, limits: dict[int, ProcessorLimits]) -> Trace:
    return replace(made, job=replace(made.job, limits=limits))


def test_the_same_job_with_the_cores_it_needs_is_no_finding(tmp_path: Path) -> None:
    assert triage(slow_for_want_of_cores(tmp_path, ready=100)).verdict == "no_straggler"


@pytest.mark.slow
def test_what_looks_like_stops_is_not_told_where_threads_computed(tmp_path: Path) -> None:
    """All ranks take 20 ms longer in two steps of six: from the trace alone they stand still."""
    took = {(step, rank): USUAL + 20_000.0 for step in (2, 4) for rank in range(RANKS)}
    made = steps(tmp_path, took, meet=2000)
    assert contention(triage(made)).pattern == "job_wide"
    computed = {cell: length + 350 for cell, length in took.items()}
    own = dict.fromkeys(ALL, USUAL + 350.0) | computed
    assert not triage(measured(made, own, {})).findings
    # Stopped by a signal they are neither ready nor do they compute.
    stopped = dict.fromkeys(ALL, USUAL + 350.0)
    assert contention(triage(measured(made, stopped, {}))).time_lost_us_per_step == pytest.approx(20_000 * 2 / 6)


@pytest.mark.slow
def test_how_often_a_quota_stopped_ranks_is_told(tmp_path: Path) -> None:
    made = slow_for_want_of_cores(tmp_path)
    rows = [(*row[:7], 3 if row[0] == 1 else 0, *row[8:]) for row in made.job.step_times.rows()]
    throttled = replace(made, job=replace(made.job, step_times=StepTimes.of_rows(rows)))
    (told,) = [one for one in contention(triage(throttled)).evidence if one.kind == "throttled"]
    assert told.figures == pytest.approx({"per_step": 0.75})
    assert all(one.kind != "throttled" for one in contention(triage(made)).evidence)
    # One stop in all steps of all ranks would read "0.0 times a step".
    rare = [(*row[:7], int(row[:2] == (1, 1)), *row[8:]) for row in made.job.step_times.rows()]
    seldom = replace(made, job=replace(made.job, step_times=StepTimes.of_rows(rare)))
    assert all(one.kind != "throttled" for one in contention(triage(seldom)).evidence)


def without_cpu_time(made: Trace) -> Trace:
    """As beside a device, where threads wait busily: what they compute is not told."""
    return replace(made, job=replace(made.job, step_times=replace(made.job.step_times, cpu_ns=())))


def test_what_stops_processes_is_told_though_nothing_tells_what_they_compute(tmp_path: Path) -> None:
    """All ranks stop for 20 ms in two steps of six, by a quota."""
    made = steps(tmp_path, {(step, rank): USUAL + 20_000.0 for step in (2, 4) for rank in range(RANKS)}, meet=2000)
    plain = contention(triage(made))
    found = contention(triage(without_cpu_time(measured(made, OWN, {}, times=(3, 0)))))
    (told,) = [one for one in found.evidence if one.kind == "throttled"]
    assert told.figures == {"per_step": 3}
    assert found.time_lost_us_per_step == plain.time_lost_us_per_step
    assert all(one.kind not in ("throttled", "no_core") for one in plain.evidence)


def test_what_only_looks_like_stops_is_not_told_where_nothing_lacked_a_core(tmp_path: Path) -> None:
    """All ranks take 20 ms longer in two steps of six, of which they are ready without a core for 10 µs or 10 ms."""
    hit = {(step, rank) for step in (2, 4) for rank in range(RANKS)}
    made = steps(tmp_path, dict.fromkeys(hit, USUAL + 20_000.0), meet=2000)
    assert triage(without_cpu_time(measured(made, OWN, dict.fromkeys(hit, 10.0)))).verdict == "no_straggler"
    found = contention(triage(without_cpu_time(measured(made, OWN, dict.fromkeys(hit, 10_000.0)))))
    (told,) = [one for one in found.evidence if one.kind == "no_core"]
    assert told.figures["ready_us_per_step"] == pytest.approx(10_000 * 2 / 6)


@pytest.mark.slow
@pytest.mark.parametrize(("ready", "is_told"), [(20_000.0, True), (0.0, False)])
def test_that_half_of_the_ranks_stand_still_is_told_where_all_lack_cores(
    tmp_path: Path, ready: float, is_told: bool
) -> None:
    """Two of four ranks take 20 ms longer in two steps of six; communicating threads lack a core for 5 ms on all."""
    hit = {(step, rank) for step in (2, 4) for rank in (0, 1)}
    made = steps(tmp_path, dict.fromkeys(hit, USUAL + 20_000.0), meet=2000)
    result = triage(without_cpu_time(measured(made, OWN, dict.fromkeys(hit, ready), communication=5000)))
    assert any(one.cause == "contention" and not one.ranks for one in result.findings) == is_told


def test_who_sleeps_is_found_among_ranks_that_lack_cores(tmp_path: Path) -> None:
    """All compute for 20 ms and lack a core for up to 20; rank 2 sleeps for 10 besides."""
    noise = np.random.default_rng(4).uniform(0, 20_000, (STEPS, RANKS))
    ready = {cell: float(noise[cell]) for cell in ALL}
    took = {cell: 20_000 + lacked + 10_000 * (cell[1] == 2) for cell, lacked in ready.items()}
    made = steps(tmp_path, took, meet=2000)
    assert all(not finding.ranks for finding in triage(made).findings)  # not by the clock
    found = next(
        one for one in triage(measured(made, {c: 20_350 + ready[c] for c in ALL}, ready)).findings if one.ranks
    )
    assert found.ranks == (2,)
    (told,) = [one for one in found.evidence if one.kind == "asleep"]
    assert told.figures["asleep_us_per_step"] == pytest.approx(10_000, rel=0.01)


def test_what_a_quota_costs_is_priced_in_transfers_too(tmp_path: Path) -> None:
    """All threads stop at once: of 40.35 ms of their own main threads lost 30, and transfers as much of 2."""
    made = steps(tmp_path, {}, usual=SLOW, meet=2000)
    throttled = measured(made, OWN, dict.fromkeys(ALL, 30_000.0), times=(3, 0))
    assert contention(triage(throttled)).time_lost_us_per_step == pytest.approx(30_000 + 2000 * 30_000 / 40_350)


def test_stops_by_signals_are_told_and_priced_though_no_operation_shows_them(tmp_path: Path) -> None:
    """Of 20.35 ms of their own threads compute in 15.35 and are never ready, in every step; transfers take 2."""
    made = steps(tmp_path, {}, usual=dict.fromkeys(range(RANKS), 20_000.0), meet=2000)
    computed = dict.fromkeys(ALL, 15_350.0)
    found = contention(triage(measured(made, computed, {}, times=(-1, 2))))
    assert found.time_lost_us_per_step == pytest.approx(5000 + 2000 * 5000 / 20_350)
    (told,) = [one for one in found.evidence if one.kind == "halted"]
    assert told.figures == {"per_step": 2}
    # Asleep for something else: nobody stopped them.
    assert triage(measured(made, computed, {}, times=(-1, 0))).verdict == "no_straggler"


@pytest.mark.slow
@pytest.mark.parametrize(("lacks_ms", "cause"), [(10, "contention"), (8, "contention"), (0, "compute")])
def test_one_slow_rank_is_told_from_one_that_lacks_a_core(tmp_path: Path, lacks_ms: int, cause: str) -> None:
    """Rank 2 takes 25 ms for what the others do in 15, always."""
    usual = dict.fromkeys(range(RANKS), 15_000.0) | {2: 25_000.0}
    own = {(step, rank): usual[rank] + 350 for step, rank in ALL}
    ready = {cell: 1000.0 * lacks_ms for cell in ALL if cell[1] == 2} if lacks_ms else {}
    made = measured(steps(tmp_path, {}, usual=usual, meet=2000), own, ready)
    (found,) = triage(made).findings
    assert (found.ranks, found.cause) == ((2,), cause)
    # Nobody waits for the little that it lacks once all have met. On a core that it shares it computes slower, too.
    assert found.time_lost_us_per_step == pytest.approx(10_000, rel=1e-3)
    assert found.fix == (Fix(ranks=(2,), kinds=("stops", "compute", "host", "input") if lacks_ms else ("compute",)),)
    replayed = next(sentence_of(one) for one in found.evidence if one.kind == "replayed")
    undone = "with threads as fast as the peers'" if lacks_ms else "without that"
    assert replayed == f"replayed {undone}, a step takes 17.4 ms instead of 27.4 ms"
    kind = "no_core" if lacks_ms else "computes_more"
    (told,) = [one for one in found.evidence if one.kind in ("no_core", "computes_more")]
    assert (told.kind, told.ranks) == (kind, (2,))


@pytest.mark.slow
def test_what_a_rank_computes_more_since_it_lacks_a_core_is_lack_of_that(tmp_path: Path) -> None:
    """From step 8 on rank 2 takes 20 ms instead of 15: it has no core for 3 of them, and its caches are lost."""
    later = [(step, 2) for step in range(8, 20)]
    made = steps(tmp_path, dict.fromkeys(later, 20_000.0), usual=dict.fromkeys(range(RANKS), 15_000.0), count=20)
    cells = [(step, rank) for step in range(20) for rank in range(RANKS)]
    own = dict.fromkeys(cells, 15_350.0) | dict.fromkeys(later, 20_350.0)
    (found,) = triage(measured(made, own, dict.fromkeys(later, 3000.0))).findings
    assert (found.ranks, found.cause) == ((2,), "contention")


"""Own time of four ranks in six steps, ms, of which 15 are work and the rest is waiting for a core."""


@pytest.mark.slow
def test_what_the_system_states_says_why_a_rank_is_slow_and_accuses_nobody(tmp_path: Path) -> None:
    """Rank 2 waits 20 ms for a core in every step, or no longer than the others; it runs at nice 10."""
    limits = {rank: ProcessorLimits(10 if rank == 2 else 0, (0, 1)) for rank in range(RANKS)}
    for name, lacked_ms in (("slow", 20), ("alike", 0)):
        took = {(step, rank): USUAL + 1000.0 * lacked_ms * (rank == 2) for step, rank in ALL}
        ready = {(step, 2): 1000.0 * lacked_ms for step in range(STEPS)}
        own = {cell: length + 350 for cell, length in took.items()}
        made = measured(steps(tmp_path / name, took, meet=2000), own, ready)
        found = [one for one in triage(replace(made, job=replace(made.job, limits=limits))).findings if one.ranks]
        assert [(one.ranks, one.cause) for one in found] == ([((2,), "contention")] if lacked_ms else [])
        for one in found:
            told = {of.kind: of.figures for of in one.evidence}
            assert told["lower_priority"] == {"nice": 10, "peers_nice": 0}
            assert told["crowded"] == {"ranks": 4, "cores": 2}
            assert one.p_value is not None
            assert one.p_value < 0.01


@pytest.mark.slow
def test_a_larger_batch_is_told_from_a_slower_device(tmp_path: Path) -> None:
    """Rank 2 takes 25 ms for what the others do in 15, always, and gives its model two thirds more."""
    usual = dict.fromkeys(range(RANKS), 15_000.0) | {2: 25_000.0}
    own = {(step, rank): usual[rank] + 350 for step, rank in ALL}
    made = measured(steps(tmp_path, {}, usual=usual, meet=2000), own, {})
    for larger, cause, kind in ((2000, "uneven_work", "larger_batch"), (1200, "compute", "same_inputs")):
        times = made.job.step_times
        bytes_given = tuple(larger if rank == 2 else 1200 for rank in times.rank)
        given = replace(made, job=replace(made.job, step_times=replace(times, given_bytes=bytes_given)))
        (found,) = triage(given).findings
        assert (found.ranks, found.cause) == ((2,), cause)
        assert kind in {one.kind for one in found.evidence}


def test_a_host_whose_network_is_slow_is_named_and_priced(tmp_path: Path) -> None:
    """All ranks meet for 20 ms; 15 of them host b needs longer to send its 4 MB than host a."""
    usual = dict.fromkeys(range(RANKS), 10_000.0)
    made = steps(tmp_path, {}, usual=usual, meet=20_000)
    ends = {"a": ("10.0.0.1", "10.0.0.2", 4e9), "b": ("10.0.0.2", "10.0.0.1", 0.25e9)}
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    sent = {rank: (SentToHost(*ends[host][:2], 5, 2e6, ends[host][2], 0),) for rank, host in hosts.items()}
    assert not triage(replace(made, job=replace(made.job, hosts=hosts))).findings
    result = triage(replace(made, job=replace(made.job, hosts=hosts, sent=sent)))
    (found,) = result.findings
    assert (result.verdict, found.cause, found.ranks, found.hosts) == ("straggler", "communication", (2, 3), ("b",))
    assert found.priced_by == "replay"
    assert found.time_lost_us_per_step == pytest.approx(15_000, rel=1e-3)


def on_a_slow_network(folder: Path) -> Trace:
    """All ranks meet for 20 ms; both hosts need 16 to send their 4 MB."""
    made = steps(folder, {}, usual=dict.fromkeys(range(RANKS), 10_000.0), meet=20_000)
    ends = {"a": ("10.0.0.1", "10.0.0.2"), "b": ("10.0.0.2", "10.0.0.1")}
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    sent = {rank: (SentToHost(*ends[host], 5, 2e6, 0.25e9, 0),) for rank, host in hosts.items()}
    return replace(made, job=replace(made.job, hosts=hosts, sent=sent))


def test_a_network_that_is_slow_for_all_is_told_of_nobody_and_priced(tmp_path: Path) -> None:
    result = triage(on_a_slow_network(tmp_path))
    (found,) = result.findings
    assert (result.verdict, found.cause, found.ranks, found.seen_on) == (
        "job_wide",
        "exposed_communication",
        (),
        (0, 1, 2, 3),
    )
    assert [one.kind for one in found.evidence] == ["network", "replayed", "price_range"]
    assert found.priced_by == "replay"
    assert found.time_lost_us_per_step == pytest.approx(16_000, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "lost_us", "by"), [(0.4, 14_000, "replay"), (0.9, 16_000, "excess")])
def test_a_replay_that_sees_less_of_a_slow_network_is_not_all_its_price(
    scale: float, lost_us: float, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saves 12 of the 16 ms that transfers take; or 2, which is no half of them."""
    monkeypatch.setattr(undoing, "faster_transfers", lambda *_: scale)
    (found,) = triage(on_a_slow_network(tmp_path)).findings
    assert (found.priced_by, found.pattern) == (by, "job_wide")
    assert found.time_lost_us_per_step == pytest.approx(lost_us, rel=1e-3)
    assert found.slowdown == pytest.approx(30.35 / (30.35 - lost_us / 1e3), rel=1e-2)
    (between,) = [one.figures for one in found.evidence if one.kind == "price_range"]
    assert between == pytest.approx({"least_us": 20_000 * (1 - scale), "most_us": 16_000}, rel=1e-3)


def uneven(folder: Path, samples: dict[int, int], us_of_sample: dict[int, float]) -> Trace:
    """The job says what each rank takes in a step, of which a sample takes so long; models are given 100 bytes each."""
    usual = {rank: samples[rank] * us_of_sample.get(rank, 1000.0) for rank in range(RANKS)}
    made = steps(folder, {}, usual=usual, meet=2000)
    own = {(step, rank): usual[rank] + 350 for step, rank in ALL}
    times = measured(made, own, {}).job.step_times
    told = tuple(samples[rank] for rank in times.rank)
    times = replace(times, samples=told, given_bytes=tuple(100 * one for one in told))
    return replace(made, job=replace(made.job, step_times=times))


@pytest.mark.slow
def test_a_rank_is_not_accused_of_the_samples_that_its_job_gives_it(tmp_path: Path) -> None:
    made = uneven(tmp_path / "even", {0: 16, 1: 16, 2: 32, 3: 16}, {})
    result = triage(made)
    assert (result.findings, result.verdict) == ((), "no_straggler")
    assert not any(row.flagged for row in (*result.ranking, *localize(made).scores))
    (told,) = (one for one in warnings_in_words(result.warnings) if one.code == "larger_share")
    assert told.message == (
        "rank 2 takes longer for what the job gives it, 32 samples a step, peers 16: 1.01 ms a sample, peers 1.02 ms, "
        "so no straggler"
    )
    untold = replace(made, job=replace(made.job, step_times=replace(made.job.step_times, samples=())))
    assert [one.ranks for one in triage(untold).findings] == [(2,)]


def test_a_rank_that_is_slow_for_its_samples_is_accused_with_what_one_takes(tmp_path: Path) -> None:
    """Rank 2 is given half as many more, each twice as long; rank 1 is as slow, and fitted."""
    made = uneven(tmp_path, {0: 16, 1: 8, 2: 24, 3: 16}, {1: 2000.0, 2: 2000.0})
    (found,) = triage(made).findings
    assert (found.ranks, found.cause) == ((2,), "compute")
    (told,) = (one for one in found.evidence if one.kind == "sample_time")
    assert sentence_of(told) == ("rank 2 takes 2.01 ms a sample, peers 1.02 ms: the job gives it 24 a step, peers 16")


@pytest.mark.slow
def test_the_first_steps_of_other_sizes_accuse_nobody(tmp_path: Path) -> None:
    """From the sixth step of 16 on sizes are others, which rank 2 compiles for."""
    took = {(step, 2): 40_000.0 for step in range(6, 11)}
    made = steps(tmp_path, took, count=16, meet=2000)
    times = made.job.step_times
    sizes = tuple(
        16 + 4 * (step >= 6) * (1 if rank % 2 else -1) for rank, step in zip(times.rank, times.step, strict=True)
    )
    told = replace(made, job=replace(made.job, step_times=replace(times, samples=sizes)))
    (slow,) = triage(made).findings
    assert (slow.ranks, slow.since, slow.steps) == ((2,), 6, tuple(range(6, 11)))
    result = triage(told)
    assert (result.findings, result.verdict, result.steps) == ((), "no_straggler", (*range(6), *range(11, 16)))
    (about,) = (one for one in warnings_in_words(result.warnings) if one.code == "new_sizes")
    assert about.message == (
        "from step 6 on ranks take other numbers of samples than before: 5 steps from there on, in which code may be "
        "compiled again for them, are left out"
    )


@pytest.mark.slow
def test_a_rank_that_is_given_more_samples_from_some_step_on_did_not_become_slower(tmp_path: Path) -> None:
    """From the sixth step of 16 on rank 2 is given three times as many samples, and takes three times as long."""
    made = steps(tmp_path, {(step, 2): 2_000.0 for step in range(6, 16)}, count=16, meet=2000)
    times = made.job.step_times
    sizes = tuple(
        48 if (rank, step >= 6) == (2, True) else 16 for rank, step in zip(times.rank, times.step, strict=True)
    )
    (slow,) = triage(made).findings
    assert (slow.ranks, slow.since) == ((2,), 6)
    told = replace(made, job=replace(made.job, step_times=replace(times, samples=sizes)))
    assert triage(told).findings == ()
