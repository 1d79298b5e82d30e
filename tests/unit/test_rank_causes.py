"""Why a rank is slow: more calls, longer batches, stops of its threads, or its own work; figures by hand."""

from dataclasses import replace

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, INPUT, STEP_NS, job, nothing, quiet

from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import conclude
from kair_engine.results.blame import BlameResult
from kair_engine.results.whatif import HostStops
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.account import KINDS, WHEN
from kair_engine.timeline.coverage import COUNTED
from kair_engine.timeline.host_activity import HostKind
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.triage.ranks.causes import diagnose, one_operator
from kair_engine.triage.ranks.diagnosis import Diagnosis

NOBODY = BlameResult(None, (), "robust", (), (), (), (), (), 0.0, 0.0, 0.0, 0, ())
STEPS, RANKS, SLOW = 6, 4, 3


def slow_by(percent: float, steps: int = STEPS) -> np.ndarray:
    """(steps × ranks): one rank takes that much longer."""
    return np.tile(percent * np.eye(RANKS)[SLOW], (steps, 1))


def anomaly(percent: float, row: int = COMPUTE, operator: str | None = None) -> Anomaly:
    return Anomaly("persistent", (SLOW,), row, 0.001, percent / 100 * STEP_NS, operator=operator)


def made(percent: float = 10, **more: object) -> JobExcess:
    percents = nothing(STEPS, RANKS)
    percents[:, COMPUTE] += slow_by(percent)
    return job(percents, **more)  # type: ignore[arg-type]


def stops(inside: dict[int, float]) -> HostStops:
    return HostStops(
        per_step=1.0,
        median_us=1e3,
        longest_us=1e3,
        share_of_step=0.1,
        slowest_rank_us=1e4,
        together=1.0,
        by_rank_us=dict(inside),
        inside_by_rank_us=dict(inside),
    )


def reason(
    of: JobExcess, largest: Anomaly, inside: dict[int, float] | None = None, parts: StepPartsTally | None = None
) -> Diagnosis:
    return diagnose(of, NOBODY, None if inside is None else stops(inside), largest, parts)


def test_an_operator_that_only_takes_longer_is_slow_work() -> None:
    of = made(operators={"mlp": slow_by(10)})
    found = reason(of, anomaly(10))
    assert (found.cause, found.operator) == ("compute", None)
    assert [(one.kind, one.about) for one in found.evidence] == [("one_kernel", "mlp")]
    assert one_operator(of, SLOW, "compute") == "mlp"


def test_more_calls_than_its_peers_are_uneven_work() -> None:
    of = made(operators={"expert": slow_by(6)}, calls={"expert": np.array([2.0, 2, 2, 5])})
    found = reason(of, anomaly(10))
    assert (found.cause, found.operator) == ("uneven_work", "expert")
    (evidence,) = found.evidence
    assert (evidence.kind, evidence.ranks, evidence.about) == ("more_calls", (SLOW,), "expert")
    assert evidence.figures == pytest.approx({"calls": 5, "usual_calls": 2, "excess_us_per_step": 6000})


def test_of_two_ranks_the_median_is_halfway_to_the_other() -> None:
    """One calls it five times and the other twice, 6 % of the step longer: 3 % and 1.5 calls from their median."""
    percents = nothing(STEPS, 2)
    percents[:, COMPUTE] += np.array([-5, 5])
    halves = np.tile(np.array([-3.0, 3]), (STEPS, 1))
    of = job(percents, operators={"expert": halves}, calls={"expert": np.array([2.0, 5])})
    found = reason(of, Anomaly("persistent", (1,), COMPUTE, 0.001, 10 / 100 * STEP_NS))
    assert (found.cause, found.operator) == ("uneven_work", "expert")
    assert found.evidence[0].figures == pytest.approx({"calls": 5, "usual_calls": 2, "excess_us_per_step": 6000})


def test_more_calls_that_are_less_than_half_of_it_are_not_why() -> None:
    of = made(operators={"expert": slow_by(4)}, calls={"expert": np.array([2.0, 2, 2, 5])})
    assert reason(of, anomaly(10)) == Diagnosis("compute")


@pytest.mark.parametrize(("host", "explained"), [(5, True), (0, False)])
def test_idle_time_between_more_calls_counts_with_what_they_take(host: float, explained: bool) -> None:
    """They take 4 of 10 % of the step. As often again as peers, they leave the thread idle for 5 % more, as peers."""
    percents = nothing(STEPS, RANKS)
    percents[:, COMPUTE] += slow_by(10)
    percents[:, HOST] += slow_by(host)
    called = {"mm": np.array([100.0, 100, 100, 200])}
    work = np.repeat(np.array([[80.0], [1], [5], [0]]), RANKS, axis=1)
    of = job(percents, operators={"mm": slow_by(4)}, calls=called, work=work, on_device=False)
    assert reason(of, anomaly(10)).cause == ("uneven_work" if explained else "compute")
    beside_a_device = job(percents, operators={"mm": slow_by(4)}, calls=called, work=work)
    assert reason(beside_a_device, anomaly(10)).cause == "compute"


@pytest.mark.parametrize(("fetched", "cause"), [(6, "unmarked_input"), (4, "host")])
def test_who_is_idle_where_a_batch_is_fetched_has_a_slow_input(fetched: float, cause: str) -> None:
    """10 % of the step is lost in idle time, so much of it between the optimizer and the model; peers need 1 %."""
    percents = nothing(STEPS, RANKS)
    percents[:, HOST] += slow_by(10)
    of = job(percents, fetching=1 + slow_by(fetched), on_device=False)
    found = reason(of, anomaly(10, HOST))
    assert found.cause == cause
    if cause != "host":
        (evidence,) = found.evidence
        assert (evidence.kind, evidence.ranks) == ("unmarked_input", (SLOW,))
        assert evidence.figures == pytest.approx({"idle_us_per_step": 7000, "peers_us_per_step": 1000})
    now_and_then = replace(anomaly(10, HOST), kind="intermittent", events=(2,), hit=(1, 4))
    assert reason(of, now_and_then).cause == "host"


@pytest.mark.parametrize(("calls", "explained"), [(200, True), (120, False)])
def test_idle_time_between_more_calls_than_its_peers_is_uneven_work(calls: int, explained: bool) -> None:
    """A call leaves the thread idle for 0.01 % of the step: a hundred more for 1 % of 4 %."""
    percents = nothing(STEPS, RANKS)
    percents[:, HOST] += slow_by(4)
    called = {"mlp": np.array([100.0, 100, 100, calls])}
    of = job(percents, operators={"mlp": slow_by(0.5)}, calls=called, on_device=False)
    found = reason(of, anomaly(4, HOST))
    assert found.cause == ("uneven_work" if explained else "host")
    if explained:
        (evidence,) = found.evidence
        assert (found.operator, evidence.kind, evidence.ranks) == ("mlp", "more_calls", (SLOW,))
        assert evidence.figures == pytest.approx({"calls": calls, "usual_calls": 100, "excess_us_per_step": 500})


def test_more_calls_count_from_the_step_on_in_which_they_began() -> None:
    """6 % of the step in the later half: 3 % in the mean, of the 10 % that the rank loses from then on."""
    later = slow_by(6) * (np.arange(STEPS) >= STEPS // 2)[:, None]
    of = made(operators={"expert": later}, calls={"expert": np.array([2.0, 2, 2, 5])})
    assert reason(of, anomaly(10)) == Diagnosis("compute")
    assert reason(of, replace(anomaly(10), since=STEPS // 2)).cause == "uneven_work"


def given(slow: float, peers: float = 100.0) -> np.ndarray:
    """(ranks): rows of a call."""
    return np.where(np.arange(RANKS) == SLOW, slow, peers)


def test_what_takes_longer_because_it_is_given_more_is_uneven_work() -> None:
    """Operators take peers 5 % of the step. One is given half as much again, 2.5 % of the step's worth; one is not."""
    of = made(10, operators={"mm": slow_by(6), "relu": slow_by(3)}, given={"mm": given(150), "relu": given(100)})
    found = reason(of, anomaly(10))
    assert (found.cause, found.operator) == ("uneven_work", None)
    (evidence,) = found.evidence
    assert (evidence.kind, evidence.ranks, evidence.about) == ("larger_inputs", (SLOW,), "mm")
    assert evidence.figures == pytest.approx({"larger_share": 0.5, "excess_us_per_step": 6000})
    alone = reason(of, anomaly(6, operator="mm"))
    assert (alone.cause, alone.operator) == ("uneven_work", "mm")


def test_of_two_ranks_one_is_given_more_than_the_other() -> None:
    """The usual is halfway. At the other's rate, 2 % of the step, 80 % more take 1.6 % of it, of 6 % in all."""
    percents = nothing(STEPS, 2)
    percents[:, COMPUTE] += np.array([-3, 3])
    halves = np.tile(np.array([-3.0, 3]), (STEPS, 1))
    two = Anomaly("persistent", (1,), COMPUTE, 0.001, 6 / 100 * STEP_NS)
    found = reason(job(percents, operators={"mm": halves}, given={"mm": np.array([100.0, 180])}), two)
    assert found.evidence[0].figures == pytest.approx({"larger_share": 0.8, "excess_us_per_step": 6000})
    little = job(percents, operators={"mm": halves}, given={"mm": np.array([100.0, 170])})
    assert reason(little, two) == Diagnosis("compute")


@pytest.mark.parametrize(
    ("excess", "of_slow"),
    [(4, 150), (6, 125), (6, 0), (6, 50)],
    ids=["little of it", "little more", "not told", "less"],
)
def test_larger_inputs_that_do_not_explain_it_are_not_why(excess: float, of_slow: float) -> None:
    of = made(10, operators={"mm": slow_by(excess), "relu": slow_by(0.5)}, given={"mm": given(of_slow)})
    assert reason(of, anomaly(10)) == Diagnosis("compute")


def test_another_kernel_for_the_same_inputs_is_no_larger_one() -> None:
    of = made(10, operators={"big": slow_by(6), "small": slow_by(-6)}, given={"big": given(150), "small": given(50)})
    assert reason(of, anomaly(10)) == Diagnosis("compute")


def test_inputs_that_no_peer_tells_are_not_as_large_as_theirs() -> None:
    told = {"mm": given(100, 0), "relu": given(100, 0)}
    halves = {"mm": slow_by(3), "relu": slow_by(3)}
    of = made(6, passes=passes(10), optimizer=optimizer(1), operators=halves, given=told)
    assert [one.kind for one in reason(of, anomaly(6)).evidence] == ["longer_batches"]


def test_inputs_as_large_as_peers_are_no_longer_batch() -> None:
    of = made(6, passes=passes(10), optimizer=optimizer(1), operators={"mm": slow_by(4)}, given={"mm": given(100)})
    found = reason(of, anomaly(6))
    assert found.cause == "compute"
    assert [(one.kind, one.figures) for one in found.evidence] == [("same_inputs", {"excess_us_per_step": 4000})]


def passes(percent: float) -> np.ndarray:
    """(steps × PASSES × ranks): forward of 20 % of the step and backward of 40 %; one rank's take longer."""
    result = np.full((STEPS, 2, RANKS), 20.0)
    result[:, 1] = 40.0
    result[:, :, SLOW] *= 1 + percent / 100
    return result


def optimizer(percent: float) -> np.ndarray:
    result = np.full((STEPS, RANKS), 10.0)
    result[:, SLOW] *= 1 + percent / 100
    return result


def test_a_slow_forward_and_backward_beside_a_usual_optimizer_is_a_longer_batch() -> None:
    found = reason(made(6, passes=passes(10), optimizer=optimizer(1)), anomaly(6))
    assert (found.cause, found.operator) == ("uneven_work", None)
    assert found.evidence[0].kind == "longer_batches"
    assert found.evidence[0].figures == pytest.approx({"passes_share": 0.1, "optimizer_share": 0.01})


@pytest.mark.parametrize(
    ("of_passes", "of_optimizer"),
    [(10.0, 10.0), (10.0, 4.0), (2.0, 0.0)],
    ids=["all is slow", "the optimizer by more than a third of that", "passes by less than 3 %"],
)
def test_what_is_no_longer_batch(of_passes: float, of_optimizer: float) -> None:
    assert reason(made(6, passes=passes(of_passes), optimizer=optimizer(of_optimizer)), anomaly(6)) == Diagnosis(
        "compute"
    )


def test_ranks_that_are_slow_together_share_a_host_and_no_batch() -> None:
    of, one = made(6, passes=passes(10), optimizer=optimizer(1)), anomaly(6)
    together = Anomaly("group", (2, SLOW), COMPUTE, 0.001, one.excess_ns)
    assert reason(of, together) == Diagnosis("compute")


def test_one_slow_pass_is_no_longer_batch() -> None:
    one = passes(0)
    one[:, 1, SLOW] *= 1.15
    assert reason(made(6, passes=one, optimizer=optimizer(0)), anomaly(6)) == Diagnosis("compute")


def test_stops_in_the_middle_of_its_operators_are_the_processors() -> None:
    """It stands still for 7 ms a step, its peers for 1 ms: 6 of the 10 ms that it loses."""
    now_and_then = replace(anomaly(10), kind="intermittent")
    found = reason(made(), now_and_then, {0: 1000.0, 1: 1000.0, 2: 1000.0, SLOW: 7000.0})
    assert found.cause == "contention"
    assert found.evidence[0].figures == {"stopped_us_per_step": 7000, "peers_us_per_step": 1000}


ADDMM, MUL = slow_by(6), slow_by(3)
STOPS_ALL_OVER = {0: 40e3, 1: 42e3, 2: 40e3, SLOW: 48e3}


@pytest.mark.parametrize(("row", "operator"), [(COMPUTE, "addmm"), (COMPUTE, None), (HOST, None), (INPUT, "fetch")])
def test_a_rank_that_stands_still_wherever_it_is_lacks_a_core_whatever_it_is_slowest_in(
    row: int, operator: str | None
) -> None:
    """It loses 12 % of the step: 6 in one operator, 3 in another, 3 between them. Stops make up 8 of it."""
    percents = nothing(STEPS, RANKS)
    percents[:, COMPUTE] += ADDMM + MUL
    percents[:, HOST] += slow_by(3)
    of = job(percents, operators={"addmm": ADDMM, "mul": MUL})
    found = reason(of, anomaly(6, row, operator), STOPS_ALL_OVER)
    assert found.cause == "contention"
    (evidence,) = found.evidence
    assert evidence.figures == {"stopped_us_per_step": 48e3, "peers_us_per_step": 40e3, "between": 1}
    in_most, in_some = (replace(anomaly(6, row), kind="intermittent", events=(of_six, 6)) for of_six in (5, 4))
    assert reason(of, in_most, STOPS_ALL_OVER).cause == "contention"
    assert reason(of, in_some, STOPS_ALL_OVER).cause == ("contention" if row == COMPUTE else CLASSES[row])


@pytest.mark.parametrize(
    ("parts", "stopped_ms"),
    [((11.0, 1.0, 0.0), 48), ((1.0, 1.0, 10.0), 48), ((6.0, 3.0, 3.0), 45)],
    ids=["one operator", "between operators", "fewer stops"],
)
def test_what_is_slow_in_one_place_or_without_stops_is_not_the_processors(
    parts: tuple[float, float, float], stopped_ms: float
) -> None:
    addmm, mul, between = map(slow_by, parts)
    percents = nothing(STEPS, RANKS)
    percents[:, COMPUTE] += addmm + mul
    percents[:, HOST] += between
    of = job(percents, operators={"addmm": addmm, "mul": mul})
    inside = {0: 40e3, 1: 42e3, 2: 40e3, SLOW: stopped_ms * 1e3}
    assert reason(of, anomaly(6, HOST), inside).cause == "host"
    assert reason(of, anomaly(6, COMPUTE, "addmm"), inside).cause == "compute"


@pytest.mark.parametrize(
    "inside", [{SLOW: 4900.0}, dict.fromkeys(range(RANKS), 7000.0), {}], ids=["few", "all", "none"]
)
def test_stops_that_do_not_explain_it_are_not_why(inside: dict[int, float]) -> None:
    assert reason(made(), anomaly(10), inside) == Diagnosis("compute")


@pytest.mark.parametrize(
    ("calls", "slower_ms", "inside", "cause"),
    [
        (14, 0.0, {}, "uneven_work"),
        (12, 0.0, {}, "host"),
        (8, 7.0, {}, "launch_bound"),
        (8, 4.0, {}, "host"),
        (8, 7.0, {SLOW: 6000.0}, "contention"),
        (8, 0.0, {SLOW: 4000.0}, "host"),
    ],
    ids=["more calls", "few more", "slower launches", "hardly slower", "stops", "few stops"],
)
def test_why_a_device_waits_for_its_host(calls: int, slower_ms: float, inside: dict[int, float], cause: str) -> None:
    """It loses 10 ms a step: what explains half of that is why. Peers idle 9 ms a step for ten launches."""
    percents = nothing(STEPS, RANKS)
    percents[:, HOST] += slow_by(10)
    called = np.array([8.0, 8.0, 8.0, calls])
    of = job(percents, operators={"conv": np.zeros((STEPS, RANKS))}, calls={"conv": called})
    recorded = np.full((len(COUNTED), RANKS), 10.0)
    of = replace(of, steps=tuple(replace(step, recorded=recorded) for step in of.steps))
    parts = StepPartsTally(of.ranks, frozenset(range(STEPS)), False)
    spent = np.zeros((len(KINDS), len(WHEN), RANKS))
    spent[KINDS.index("launching"), WHEN.index("launches")] = 9e6 + slower_ms * 1e6 * np.eye(RANKS)[SLOW]
    parts.spent_ns |= dict.fromkeys(range(STEPS), spent)
    found = reason(of, anomaly(10, HOST), inside, parts)
    assert found.cause == cause
    assert found.operator == ("conv" if cause == "uneven_work" else None)
    figures = {kind.kind: kind.figures for kind in found.evidence}
    shown = {
        "uneven_work": {"launches_more": {"calls": 14, "usual_calls": 8, "excess_us_per_step": pytest.approx(5400)}},
        "launch_bound": {"slower_launches": {"idle_us_per_step": 16000, "peers_us_per_step": 9000}},
        "contention": {"stopped": {"stopped_us_per_step": 6000, "peers_us_per_step": 0}},
    }
    assert figures == shown.get(cause, {})


def delays(hit: list[int]) -> Diagnosis:
    percents = quiet(20, RANKS)
    percents[hit, HOST, SLOW] += 40
    of = job(percents)
    (found,) = conclude(of).anomalies
    assert found.kind == "intermittent"
    return reason(of, found)


def test_delays_every_fifth_step_are_meant() -> None:
    found = delays([2, 7, 12, 17])
    assert found.cause == "periodic_pause"
    assert [(one.kind, one.figures) for one in found.evidence] == [("periodic", {"every": 5, "events": 4})]


def test_delays_that_only_what_the_kernel_measured_shows_are_meant_as_well() -> None:
    """Hidden among what the thread loses for want of a core: in no step does it stand out by the clock."""
    hidden = Anomaly("intermittent", (SLOW,), HOST, 0.001, 8 / 100 * STEP_NS, (4, 4), (2, 7, 12, 17))
    found = reason(job(quiet(20, RANKS)), hidden)
    assert found.cause == "periodic_pause"
    assert [(one.kind, one.figures) for one in found.evidence] == [("periodic", {"every": 5, "events": 4})]


@pytest.mark.parametrize(
    "hit", [[2, 7, 12, 18], [0, 2, 4, 6], [6, 9, 12, 15]], ids=["not quite", "not to the end", "in the middle"]
)
def test_delays_here_and_there_are_the_hosts(hit: list[int]) -> None:
    assert delays(hit) == Diagnosis("host")


def measured(ready_ms: list[float], computed_ms: list[float]) -> ProcessorTimes:
    """By rank, alike in all steps."""
    ready, computed = (np.tile(np.array([of]).T * 1e6, (1, STEPS)) for of in (ready_ms, computed_ms))
    untold = np.full(ready.shape, np.nan)
    return ProcessorTimes(np.arange(RANKS), np.arange(STEPS), computed, ready, untold, untold, untold, untold)


@pytest.mark.parametrize("row", [COMPUTE, HOST])
@pytest.mark.parametrize("operator", [None, "mlp"])
def test_a_rank_that_was_ready_without_a_core_lacks_one_whatever_it_looks_like(row: int, operator: str | None) -> None:
    """It loses 10 ms a step: it was ready without a core for 9 ms more than its peers, and computed as long."""
    of, times = made(operators={"mlp": slow_by(10)}), measured([1, 2, 3, 11], [80, 82, 84, 82])
    found = diagnose(of, NOBODY, None, anomaly(10, row, operator), None, times)
    assert (found.cause, found.operator) == ("contention", None)
    (evidence,) = found.evidence
    assert (evidence.kind, evidence.ranks) == ("no_core", (SLOW,))
    assert evidence.figures == pytest.approx({"ready_us_per_step": 11e3, "peers_least_us": 1e3, "peers_most_us": 3e3})


def test_a_rank_that_computes_more_with_the_cores_it_needs_is_slow_itself() -> None:
    """Its stops would explain what it loses, but its thread computed all the while."""
    inside, times = {0: 0.0, 1: 0.0, 2: 0.0, 3: 9e3}, measured([1, 2, 3, 2], [80, 82, 84, 91])
    assert diagnose(made(), NOBODY, stops(inside), anomaly(10)).cause == "contention"
    found = diagnose(made(), NOBODY, stops(inside), anomaly(10), None, times)
    assert found.cause == "compute"
    assert [one.kind for one in found.evidence] == ["computes_more"]
    assert found.evidence[0].figures == pytest.approx(
        {"computed_us_per_step": 91e3, "peers_least_us": 80e3, "peers_most_us": 84e3}
    )


@pytest.mark.parametrize(
    ("ready", "computed", "cause"),
    [
        # 6 ms more to compute is 18 ms more of waiting for the core.
        (48, 16, "input"),
        # Held back by 28 ms, 6 of which go with 2 ms that it computes more.
        (58, 12, "contention"),
    ],
)
def test_on_a_core_that_four_share_computing_more_takes_three_times_as_much_of_waiting(
    ready: float, computed: float, cause: str
) -> None:
    """Each peer computes for 10 ms and waits for 30."""
    times = measured([30, 30, 30, ready], [10, 10, 10, computed])
    inside = {0: 0.0, 1: 0.0, 2: 0.0, 3: 20e3}
    found = diagnose(made(), NOBODY, stops(inside), anomaly(ready + computed - 40, INPUT), None, times)
    assert (found.cause, found.evidence[0].kind) == (cause, "computes_more" if cause == "input" else "no_core")


@pytest.mark.parametrize("lacks", [True, False])
def test_delays_now_and_then_are_what_was_measured_in_their_steps(lacks: bool) -> None:
    """40 ms in 4 of 20 steps, 8 ms a step: without a core for as long just there, and for less than peers elsewhere."""
    hit, steps = [1, 2, 11, 19], 20
    own, peers = np.zeros(steps), np.full(steps, 10.0)
    own[hit] = 46
    ready, computed = np.tile(peers, (RANKS, 1)), np.full((RANKS, steps), 50.0)
    (ready if lacks else computed)[SLOW] = own + (0 if lacks else 50)
    untold = np.full(ready.shape, np.nan)
    times = ProcessorTimes(np.arange(RANKS), np.arange(steps), computed * 1e6, ready * 1e6, *[untold] * 4)
    found = diagnose(
        job(quiet(steps, RANKS)),
        NOBODY,
        None,
        Anomaly("intermittent", (SLOW,), COMPUTE, 0.001, 8 / 100 * STEP_NS, (4, 4), tuple(hit)),
        None,
        times,
    )
    assert found.cause == ("contention" if lacks else "compute")
    figures = (
        {"ready_us_per_step": 46e3, "peers_least_us": 10e3, "peers_most_us": 10e3}
        if lacks
        else {"computed_us_per_step": 96e3, "peers_least_us": 50e3, "peers_most_us": 50e3}
    )
    assert found.evidence[0].figures == pytest.approx({**figures, "hit_steps": 4})


def batches(of_slow: float, of_peers: float = 1000.0) -> np.ndarray:
    """Bytes of each rank in every step."""
    return np.tile(np.where(np.eye(RANKS)[SLOW] > 0, of_slow, of_peers), (STEPS, 1))


PASSES = np.full((STEPS, 2, RANKS), 20.0)
"""Forward and backward take 20 ms each."""


def test_a_larger_batch_is_told_whatever_it_looks_like() -> None:
    """A third more than 40 ms is more than the 10 ms that it loses; that it lacks a core for longer goes with that."""
    times = measured([1, 2, 3, 11], [80, 82, 84, 82])
    found = diagnose(made(passes=PASSES), NOBODY, None, anomaly(10), None, times, given=batches(1333.3))
    assert (found.cause, found.operator) == ("uneven_work", None)
    (evidence,) = found.evidence
    assert (evidence.kind, evidence.ranks) == ("larger_batch", (SLOW,))
    assert evidence.figures == pytest.approx(
        {"given_bytes": 1333.3, "usual_given_bytes": 1000, "larger_share": 0.3333}, rel=1e-3
    )


@pytest.mark.parametrize("of_slow", [1000.0, 700.0, 1050.0])
def test_a_batch_as_large_as_its_peers_or_hardly_larger_explains_nothing(of_slow: float) -> None:
    """Of 40 ms a twentieth is 2, of the 10 that it loses less than a quarter."""
    found = diagnose(made(passes=PASSES), NOBODY, None, anomaly(10), given=batches(of_slow))
    assert found.cause == "compute"
    assert [one.kind for one in found.evidence] == ["same_inputs"] * (of_slow == 1000)


@pytest.mark.parametrize(
    ("of_slow", "longer", "told"),
    [(2000.0, 10.0, ["larger_batch"]), (1000.0, 10.0, []), (2000.0, 0.0, []), (np.nan, 10.0, [])],
    ids=["twice as large", "as large", "idle elsewhere", "not told"],
)
def test_a_host_that_is_longer_in_its_passes_for_a_larger_batch_says_so(
    of_slow: float, longer: float, told: list[str]
) -> None:
    """As where a host sleeps for each sample: 10 % of the step usually, twice that for twice as much."""
    percents, idle = nothing(STEPS, RANKS), np.zeros((STEPS, 2, RANKS))
    percents[:, HOST] += slow_by(10)
    idle[:, 0] = 10.0
    idle[:, 0, SLOW] += longer
    of = job(percents, passes=np.full((STEPS, 2, RANKS), 1.0), idle=idle, on_device=False)
    found = diagnose(of, NOBODY, None, anomaly(10, HOST), given=batches(of_slow))
    assert (found.cause, [one.kind for one in found.evidence]) == ("host", told)


@pytest.mark.parametrize(("of_slow", "of_peers"), [(np.nan, 1000.0), (1333.0, np.nan)])
def test_a_batch_that_ranks_do_not_tell_explains_nothing(of_slow: float, of_peers: float) -> None:
    assert diagnose(made(passes=PASSES), NOBODY, None, anomaly(10), given=batches(of_slow, of_peers)) == Diagnosis(
        "compute"
    )


def test_a_rank_that_sleeps_neither_lacks_cores_nor_computes() -> None:
    times = measured([1, 2, 3, 3], [80, 82, 84, 82])
    assert diagnose(made(), NOBODY, None, anomaly(10, HOST), None, times) == diagnose(
        made(), NOBODY, None, anomaly(10, HOST)
    )


def test_where_some_rank_was_not_measured_nothing_follows() -> None:
    times = measured([1, 2, np.nan, 11], [80, 82, np.nan, 82])
    assert diagnose(made(), NOBODY, None, anomaly(10), None, times) == diagnose(made(), NOBODY, None, anomaly(10))


@pytest.mark.parametrize("kind", ["allocator", "compilation"])
def test_calls_that_leave_the_device_idle_are_the_cause(kind: HostKind) -> None:
    """Of 10 % of the step that the rank's device idles longer, 7 go by in these calls; peers spend 1 in them."""
    percents = nothing(STEPS, RANKS)
    percents[:, HOST] += slow_by(10)
    found = reason(job(percents, activity={kind: np.array([1.0, 1, 1, 8])}), anomaly(10, HOST))
    assert found.cause == kind
    (shown,) = found.evidence
    assert (shown.kind, shown.about, shown.ranks) == ("in_calls", kind, (SLOW,))
    assert shown.figures == pytest.approx({"idle_us_per_step": 8000, "peers_us_per_step": 1000})
    assert reason(job(percents, activity={kind: np.array([1.0, 1, 1, 5])}), anomaly(10, HOST)).cause == "host"
    assert reason(job(percents, activity={kind: np.full(RANKS, 8.0)}), anomaly(10, HOST)).cause == "host"


def test_what_compiles_without_a_device_is_no_slow_work() -> None:
    of = made(10, operators={"compile_fx_inner": slow_by(10)}, activity={"compilation": slow_by(10)}, on_device=False)
    assert reason(of, anomaly(10)).cause == "compilation"
