"""A certificate holds, proves what it says, and no change to it is missed."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli_samples import assert_valid, kair
from support.places import ROOT, SAMPLES, TRACES
from support.trace_builder import Row, build

import kair as python_kair
from kair_engine.certificate import verify
from kair_engine.certificate.making import certificate
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, RANK_SHARE
from kair_engine.results.step_bar import BAR_PARTS
from kair_engine.stats import student_t_tail
from kair_engine.timeline.account import _PART_OF_KIND, KINDS
from kair_engine.timeline.step_parts import PARTS, UNKNOWN
from kair_engine.triage.analysis import triage
from kair_engine.triage.open_items import LEAVES_OPEN

sys.path.insert(0, str(ROOT / "validation"))
from certificates import follows, refuses_renewed, refuses_text, with_a_byte

WHOLE = ("slow_operator", "pipeline_slow_operator", "two_hosts_slow_input", "intermittent_stall", "healthy")


@pytest.fixture(scope="module")
def text() -> bytes:
    return python_kair.open(SAMPLES / "slow_operator", progress=False).triage().certificate()


def renewed(document: dict[str, object]) -> bytes:
    return verify.encoded({**document, "sha256": verify.digest(document)})


@pytest.mark.slow
@pytest.mark.parametrize("sample", WHOLE)
def test_all_of_a_verdict_follows_from_what_was_recorded(sample: str) -> None:
    found = python_kair.open(SAMPLES / sample, progress=False).triage()
    document = verify.check(found.certificate())
    derived = document["derived"]
    assert derived["stated"] == []
    assert derived["verdict"] == found.verdict
    assert derived["step_time_us"] == pytest.approx(found.step_time_us)
    assert found.bar is not None
    assert derived["bar_us"] == pytest.approx({one.part: one.us for one in found.bar.parts}, abs=1e-3)
    for certified, one in zip(derived["findings"], found.findings, strict=True):
        assert certified["p_value"] == pytest.approx(one.p_value)
        assert certified["time_lost_us_per_step"] == pytest.approx(one.time_lost_us_per_step)
        assert certified["gpu_hours_per_day"] == pytest.approx(one.gpu_hours_per_day)


@pytest.mark.slow
def test_a_recording_of_a_single_step_has_a_certificate() -> None:
    recorded = TRACES / "megatron-tp8"
    if not recorded.is_dir():
        pytest.skip("the recording is not there")
    found = python_kair.open(recorded, progress=False).triage()
    assert len(found.steps) == 1
    assert verify.check(found.certificate())["derived"]["verdict"] == found.verdict


@pytest.mark.slow
def test_t_follows_from_the_steps_as_localize_has_it() -> None:
    job = python_kair.open(SAMPLES / "job123", progress=False)
    found = job.triage()
    document = verify.check(found.certificate())
    (look,) = document["derived"]["looks"]
    assert max(look["t"].values()) == pytest.approx(found.ranking[0].score, rel=1e-6)
    document["recorded"]["excess_quarter_ns"]["own"][3][5] += 10**9
    with pytest.raises(verify.Refused, match=r"chance of own|looks.0.t.own"):
        verify.check(renewed(document))


@pytest.mark.parametrize("df", [4, 5, 20, 76, 1000])
@pytest.mark.parametrize("t", [-1.0, 0.01, 1.0, 5.0, 80.0])
def test_the_verifier_s_tail_is_student_s(t: float, df: float) -> None:
    known = min(student_t_tail(t, df), 0.5)
    assert verify.student_tail(t, df) == pytest.approx(max(known, 1e-300), rel=1e-3)


@pytest.mark.slow
def test_what_does_not_follow_is_named_as_stated() -> None:
    document = verify.check(python_kair.open(SAMPLES / "slow_host", progress=False).triage().certificate())
    assert document["derived"]["stated"] == ["looks.0.chance"]


def test_the_verifier_has_the_engine_s_constants() -> None:
    assert (verify.FALSE_ALARM_RATE, verify.RANK_SHARE) == (FALSE_ALARM_RATE, RANK_SHARE)
    assert verify.LEAVES_OPEN == LEAVES_OPEN
    assert verify.BAR == BAR_PARTS
    names = {0: "compute", 1: "transfer", 2: "waiting", len(PARTS) - 1: "other", UNKNOWN: "unmatched"}
    for kind, part in zip(KINDS, _PART_OF_KIND.tolist(), strict=True):
        assert verify._PART_OF_KIND.get(kind, "job_wide") == names.get(part, "job_wide")


@pytest.mark.slow
def test_every_change_is_refused(text: bytes) -> None:
    draw, document = random.Random(5), verify.check(text)
    places = follows(document)
    assert all(refuses_renewed(document, draw, places) for _ in range(2_000))
    assert all(refuses_text(with_a_byte(text, draw)) for _ in range(2_000))


@pytest.mark.slow
def test_two_that_hide_each_other_have_their_parts_and_their_sum(tmp_path: Path) -> None:
    rows, spans = [], {}
    for step in range(12):
        for rank in range(8):
            begin, took = 130.0 * step, 100.0 + (20 + step % 3 if rank in (1, 6) else 0)
            rows += [Row(rank, "gpu7", "gemm", begin, took, step)]
            rows += [Row(rank, "gpu7", "allreduce", begin + took, 130 - took, step, group="dp", seq=step)]
            spans[rank, step] = (begin, 130.0)
    trace = build(tmp_path, rows, spans)
    found = triage(trace)
    assert found.accused_together is not None
    document = verify.check(certificate(trace, found, [], {"kair": "0"}, 2.0))
    together = document["derived"]["accused_together"]
    assert together["saved_us"] == pytest.approx(found.accused_together.saved_us)
    assert together["no_less_than_each"]
    for certified, one in zip(document["derived"]["findings"], found.findings, strict=True):
        assert certified["most_us_per_step"] == pytest.approx(one.most_us_per_step, abs=1e-3)
        assert certified["cost_per_day"] == pytest.approx(2 * certified["gpu_hours_per_day"])


@pytest.mark.slow
def test_the_largest_job_of_a_promise_stays_below_a_megabyte(tmp_path: Path) -> None:
    """64 ranks and 50 steps."""
    rows, spans = [], {}
    for step in range(50):
        for rank in range(64):
            begin, took = 130_000.0 * step, 100_000.0 + (rank * 7919 + step * 104_729) % 997 + 20_000 * (rank == 3)
            rows += [Row(rank, "gpu7", "gemm", begin, took, step)]
            rows += [Row(rank, "gpu7", "allreduce", begin + took, 130_000 - took, step, group="dp", seq=step)]
            spans[rank, step] = (begin, 130_000.0)
    trace = build(tmp_path, rows, spans)
    text = certificate(trace, triage(trace), [], {"kair": "0"}, None)
    assert len(text) <= 1_000_000
    # Ten more kinds in every cell, as recordings of devices have at most.
    cells = len(json.dumps(verify.check(text)["recorded"]["account"]["ns"]["compute"]))
    assert len(text) + 10 * cells <= 1_000_000


@pytest.mark.slow
def test_the_command_says_first_what_is_proved(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "out.json"
    assert kair("triage", str(SAMPLES / "slow_operator"), "--certificate", str(file)).status == 0
    assert file.read_bytes() == text
    outcome = kair("verify", str(file))
    assert outcome.status == 0
    assert outcome.out.startswith("This proves the arithmetic, not that the recording is honest.\n")
    assert "verdict: straggler" in outcome.out
    document = json.loads(kair("verify", str(file), "--json").out)
    assert_valid(document, "verify")
    assert document["data"]["sums"] == 48
    alone = [sys.executable, "-I", str(ROOT / "engine/kair_engine/certificate/verify.py"), str(file)]
    done = subprocess.run(alone, capture_output=True, text=True, check=True)
    assert done.stdout == "This proves the arithmetic, not that the recording is honest.\nholds: straggler\n"


def test_a_certificate_is_of_the_whole_verdict(tmp_path: Path) -> None:
    line = ("triage", str(SAMPLES / "slow_operator"), "--rank", "2", "--certificate", str(tmp_path / "out.json"))
    assert kair(*line).status == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "no object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":NaN}', "no certificate"),
        (b'{"a":1e999}', "no certificate"),
        (b'{"a":' + b"9" * 5_000 + b"}", "no certificate"),
        (b'{"a":"\xff"}', "not JSON"),
        (b'{"a":1, "a":2}\n', "not written as certificates are"),
        (b'{"a":1}\n', "its digest"),
        (b"x" * (verify.MOST_BYTES + 1), "larger than 16 MiB"),
    ],
    ids=lambda one: str(one)[:20],
)
def test_what_is_no_certificate_is_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "out.json"
    file.write_bytes(content)
    outcome = kair("verify", str(file))
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (3, "", 1)
    assert says in outcome.err


def test_a_missing_file_is_named() -> None:
    outcome = kair("verify", "missing.json")
    assert outcome.status == 3
    assert "missing.json" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ranks", []),
        ("ranks", ["a", "b", "c", "d"]),
        ("looks", [{"tests": 1}]),
        ("looks", {}),
        ("findings", [{}]),
        ("open", 5),
        ("length_ns", [[1 << 80] * 4] * 12),
        ("length_ns", [[True] * 4] * 12),
        ("replays", None),
        ("world_size", "many"),
        ("gpu_cost", [1]),
        ("account", {"steps": [0], "ns": {"compute": [[-5, 5, 5, 5]]}}),
        ("verdict", "guilty"),
        ("job", {"a": 1}),
    ],
)
def test_wrong_recorded_figures_are_refused(text: bytes, field: str, value: object) -> None:
    document = json.loads(text)
    document["recorded"][field] = value
    with pytest.raises(verify.Refused):
        verify.check(renewed(document))
