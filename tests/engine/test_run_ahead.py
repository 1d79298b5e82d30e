"""Jobs whose hosts run ahead of their devices: steps on the devices, prices in steady state, absorbed delays."""

import gzip
import json
from pathlib import Path

import pytest
from ahead_faults import DeviceStalls, HostStalls
from fault_model import Fault
from job_folder import write_ahead_folder
from layouts import JobLayout
from run_ahead import Ahead
from simulator import JobSpec
from support.run_ahead import AheadJob, period_of, write_ahead_job

from kair_engine.recording.opening import open_trace
from kair_engine.recording.step_numbers import steps_on_devices
from kair_engine.results.triage import TriageResult
from kair_engine.timeline.host_time import leads_of
from kair_engine.trace.model import StepTimes, Trace
from kair_engine.triage.analysis import triage
from kair_engine.whatif.analysis import whatif

HEALTHY = AheadJob(steps=10)
SLOW = AheadJob(steps=10, slow={2: 1.3})


def opened(folder: Path, job: AheadJob) -> Trace:
    return open_trace(write_ahead_job(folder / "job", job), cache=folder / "cache")


def asked(folder: Path, job: AheadJob) -> TriageResult:
    return triage(opened(folder, job))


def test_a_step_is_what_its_device_takes(tmp_path: Path) -> None:
    """From one step's last operation to the next one's; the marks of the first steps are much shorter."""
    trace = opened(tmp_path, AheadJob(steps=10, queue=40))
    assert trace.job.host_times is not None
    lasted = trace.job.step_times.duration_ns
    assert sum(lasted) / len(lasted) == pytest.approx(1e3 * period_of(HEALTHY), rel=0.01)


def test_a_job_that_waits_for_its_device_keeps_its_marks(tmp_path: Path) -> None:
    trace = opened(tmp_path, AheadJob(steps=6, synchronised=True))
    assert trace.job.host_times is None


def test_steps_on_devices_by_hand() -> None:
    """Marks of 10 one after another; the device is 30 behind, and takes 20 a step."""
    of_one_rank = StepTimes(
        (0, 0, 0), (5, 6, 7), (100, 110, 120), (10, 10, 10), (4, 4, 4), device_begin_ns=(125, 140, 160),
        device_end_ns=(140, 160, 180),
    )  # fmt: skip
    found = steps_on_devices(of_one_rank)
    assert found is not None
    assert (found.begin_ns, found.duration_ns) == ((125, 140, 160), (15, 20, 20))
    alike = StepTimes(
        (0, 0), (5, 6), (100, 200), (100, 100), (4, 4), device_begin_ns=(120, 220), device_end_ns=(199, 299)
    )
    assert steps_on_devices(alike) is None


@pytest.mark.slow
def test_a_slow_device_is_accused_and_priced_by_the_period(tmp_path: Path) -> None:
    """The failure that this guards against priced it at nothing: what launches waited counted as the host's work."""
    result = asked(tmp_path, SLOW)
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.cause, finding.priced_by) == ("straggler", (2,), "compute", "replay")
    loss = period_of(SLOW) - period_of(HEALTHY)
    assert finding.time_lost_us_per_step == pytest.approx(loss, rel=0.05)
    assert finding.throughput_gain >= 0.2


@pytest.mark.slow
@pytest.mark.parametrize("queue", [7, 12, 40, None], ids=str)
def test_the_price_of_a_slow_device_does_not_depend_on_the_queue(tmp_path: Path, queue: int | None) -> None:
    result = asked(tmp_path, AheadJob(steps=10, slow={2: 1.3}, queue=queue))
    (finding,) = result.findings
    assert finding.time_lost_us_per_step == pytest.approx(period_of(SLOW) - period_of(HEALTHY), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("queue", [9, 12, 40], ids=str)
def test_nobody_and_nothing_is_found_in_a_healthy_job(tmp_path: Path, queue: int) -> None:
    result = asked(tmp_path, AheadJob(steps=10, queue=queue))
    assert (result.verdict, result.findings, result.absorbed) == ("no_straggler", (), ())


@pytest.mark.slow
def test_an_input_that_the_queue_absorbs_is_told_and_accused_of_nothing(tmp_path: Path) -> None:
    """120 µs of input on one rank, whose host has 200 to spare in every step."""
    result = asked(tmp_path, AheadJob(steps=10, fetch=dict.fromkeys(range(4), 5.0) | {1: 120.0}))
    assert (result.verdict, result.findings) == ("no_straggler", ())
    (told,) = result.absorbed
    assert (told.ranks, told.cause) == ((1,), "input")
    assert told.longer_us_per_step == pytest.approx(115, rel=0.02)
    assert told.ahead_us is not None
    assert told.ahead_us > 50


@pytest.mark.slow
def test_an_input_beyond_what_the_queue_absorbs_costs_what_is_beyond(tmp_path: Path) -> None:
    fetch = dict.fromkeys(range(4), 5.0)
    late, usual = (AheadJob(steps=10, fetch=of) for of in (fetch | {1: 400.0}, fetch))
    result = asked(tmp_path, late)
    (finding,) = result.findings
    assert (finding.ranks, finding.cause, result.absorbed) == ((1,), "input", ())
    assert finding.time_lost_us_per_step == pytest.approx(period_of(late) - period_of(usual), rel=0.05)


def test_a_host_has_as_much_to_spare_as_the_period_is_longer_than_its_own_time(tmp_path: Path) -> None:
    trace = opened(tmp_path, AheadJob(steps=10, queue=40, warm_up=2))
    leads = leads_of(trace)
    assert leads is not None
    # Six launches with what comes before each, the step's begin and end.
    own = 6 * 10 + 4
    assert leads.slack_us((0, 1, 2, 3)) == pytest.approx(period_of(HEALTHY) - own, abs=15)


@pytest.mark.slow
def test_four_steps_of_a_deep_queue_are_priced_as_many_are(tmp_path: Path) -> None:
    """All that the recorded steps wait for was launched before."""
    few = AheadJob(steps=4, slow={2: 1.3}, queue=60, warm_up=20)
    result = asked(tmp_path, few)
    priced = [one for one in result.findings if one.ranks == (2,)]
    assert [one.time_lost_us_per_step for one in priced] == [
        pytest.approx(period_of(SLOW) - period_of(HEALTHY), rel=0.05)
    ]


@pytest.mark.slow
def test_ranks_whose_devices_are_not_recorded_change_no_price(tmp_path: Path) -> None:
    """The kernels of two of four ranks are lost."""
    folder = write_ahead_job(tmp_path / "job", SLOW)
    for rank in (0, 3):
        path = folder / f"rank{rank}.json.gz"
        content = json.loads(gzip.decompress(path.read_bytes()))
        content["traceEvents"] = [one for one in content["traceEvents"] if one.get("cat") != "kernel"]
        path.write_bytes(gzip.compress(json.dumps(content).encode()))
    found = whatif(open_trace(folder, cache=tmp_path / "cache"))
    assert found.step_time_us == pytest.approx(period_of(SLOW), rel=0.02)
    assert found.simulation_error == pytest.approx(0, abs=0.02)


@pytest.mark.slow
def test_windows_are_bounded_and_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are larger than a window are replayed by themselves."""
    monkeypatch.setattr("kair_engine.whatif.operators.batches._MOST_ROWS", 10)
    (finding,) = asked(tmp_path, SLOW).findings
    assert finding.ranks == (2,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "fault", "seed", "queue"),
    [
        (JobLayout("dp", 8, reads_loss=0), HostStalls(2, 1, 3.2), 7107, 48),
        (JobLayout("fsdp", 8, reads_loss=0), DeviceStalls(2, 3, 0.4), 7116, 134),
    ],
    ids=["a pause of its host", "stalls of its device"],
)
def test_what_few_steps_of_one_rank_cost_is_told_once(
    layout: JobLayout, fault: Fault, seed: int, queue: int, tmp_path: Path
) -> None:
    """Launches behind its late collective wait for a place: no lack of cores; and no uneven work besides."""
    spec = JobSpec(layout, 10, seed, (fault,), ahead=Ahead(queue, warm_up=10, measured=41))
    write_ahead_folder(spec, tmp_path / "job")
    result = triage(open_trace(tmp_path / "job" / "input", cache=tmp_path / "cache"))
    assert result.findings == ()
    assert [(one.kind, one.ranks) for one in result.open] == [("event", (2,))]
