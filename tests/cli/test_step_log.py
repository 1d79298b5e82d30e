"""`kair triage LOG`: the verdict from step times on every face, and what is said of a log that has none."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.cli_samples import kair
from support.job_logs import timed_out
from support.program import KAIR

import kair as api

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of 64 ranks, slower by a fifth since step 201."""
    seconds = np.exp(0.01 * np.random.default_rng(3).standard_normal(400))
    seconds[200:] *= 1.2
    path = tmp_path / "train.log"
    lines = (
        f"iteration {n}/ 900 | elapsed time per iteration (ms): {1e3 * s:.1f} |\n" for n, s in enumerate(seconds, 1)
    )
    path.write_text("> using world size: 64\n" + "".join(lines))
    return path


def test_says_what_the_log_shows_and_what_to_record(log: Path) -> None:
    shown = kair("triage", str(log))
    assert shown.status == 0
    first, *_ = shown.out.splitlines()
    assert first.startswith("inconclusive: steps take 20.")
    assert "since step 201" in first and "names no rank" in first
    assert "next: it persists: record all 64 ranks for 10 steps" in shown.out
    assert "in a log of Megatron-LM, 64 ranks" in shown.out


@pytest.mark.slow
def test_every_face_has_the_same_answer(log: Path) -> None:
    found = json.loads(kair("triage", str(log), "--json").out)["data"]
    (change,) = found["log"]["changes"]
    assert (change["kind"], change["since"], change["until"]) == ("slower", 201, None)
    assert change["extra_us_per_step"] == pytest.approx(200_000, rel=0.03)
    assert found["verdict"] == "inconclusive"
    opened = api.open(log, progress=False).triage()
    assert opened.log is not None
    assert opened.log.changes[0].sentence == change["sentence"]
    for form in ("md", "tree", "csv", "wide", "ndjson"):
        shown = kair("triage", str(log), "-o", form)
        assert shown.status == 0, form
        assert "since step 201" in shown.out or form == "ndjson"
    assert "since step 201" in kair("triage", str(log), "--oneline").out
    assert kair("triage", str(log), "--fail-on", "slowdown>1.1").status == 10
    assert kair("triage", str(log), "--fail-on", "straggler").status == 0


@pytest.mark.slow
def test_a_log_on_stdin(log: Path) -> None:
    command = [*KAIR, "triage", "-", "--json"]
    done = subprocess.run(command, input=log.read_bytes(), capture_output=True, check=True)
    document = json.loads(done.stdout)
    assert document["job"]["name"] == document["job"]["source"] == "stdin"
    assert document["data"]["log"]["changes"][0]["since"] == 201


def test_steps_and_info_of_a_log(log: Path) -> None:
    rows = json.loads(kair("steps", str(log), "--json").out)["data"]["summary"]
    assert [row["slow"] for row in rows] == [False] * 200 + [True] * 200
    assert "400 steps" in kair("steps", str(log)).out
    assert "world size" in kair("info", str(log)).out


@pytest.mark.parametrize(
    "words", [("localize",), ("blame",), ("whatif",), ("rank", "--rank", "0"), ("forecast",), ("mitigate", "simulate")]
)
def test_what_needs_a_recording_says_so(words: tuple[str, ...], log: Path) -> None:
    refused = kair(*words, str(log))
    assert refused.status == 3
    assert "is a log, which says how long steps took" in refused.err


def test_own_patterns_and_what_is_no_log(tmp_path: Path) -> None:
    own = tmp_path / "own.log"
    own.write_text("".join(f"it={n} took {1 + n % 3 / 100}s\n" for n in range(60)))
    assert kair("triage", str(own)).status == 3
    pattern = r"it=(?P<step>\d+) took (?P<time>[\d.]+)s"
    assert "60 steps" in kair("triage", str(own), "--log-pattern", pattern).out
    refused = kair("triage", str(own), "--log-pattern", r"(?P<step>\d+) never (?P<time>\d+)")
    assert (refused.status, refused.err.count("\n")) == (3, 2)
    refused = kair("triage", str(own), "--log-pattern", r"(?P<step>\d+")
    assert (refused.status, refused.err.count("\n")) == (2, 2)
    own.write_text("iteration 1/ 9 | elapsed time per iteration (ms): 0.0 |\n" * 9)
    assert "every time of a step" in kair("triage", str(own)).err


def test_a_log_with_few_steps_says_that(tmp_path: Path) -> None:
    few = tmp_path / "few.log"
    few.write_text("".join(f"completed step: {n}, seconds: 1.0\n" for n in range(5)))
    assert "5 steps with a time, too few" in kair("triage", str(few)).out


def test_a_log_of_steps_that_ends_in_a_hang_has_both_answers(tmp_path: Path) -> None:
    chance = np.random.default_rng(3)
    seconds = np.exp(0.01 * chance.standard_normal(400)) * np.where(np.arange(400) < 200, 1.0, 1.2)
    steps = [f"[rank0]: completed step: {n}, seconds: {s:.4f}" for n, s in enumerate(seconds, 1)]
    stuck = [line for rank in (0, 1, 3) for line in timed_out(rank, 402)]
    log = tmp_path / "train.log"
    log.write_text("\n".join(["world_size=4", *steps, *stuck]) + "\n")
    shown = kair("triage", str(log))
    first, *_ = shown.out.splitlines()
    assert first.startswith("straggler: rank 2")
    assert ("log: steps take 20" in shown.out and "from step 201 on" in shown.out) or "since step 201" in shown.out
    found = json.loads(kair("triage", str(log), "--json").out)["data"]
    (finding,) = found["findings"]
    (change,) = found["log"]["changes"]
    assert (finding["ranks"], change["since"]) == ([2], 201)


@pytest.mark.slow
def test_a_rank_that_its_own_lines_set_apart_is_a_finding_with_a_price_and_a_ticket(tmp_path: Path) -> None:
    chance = np.random.default_rng(8)
    load = 5.0 * np.exp(0.03 * chance.standard_normal((300, 8)))
    load[150:, 2] += 40.0
    step = 200.0 * np.exp(0.005 * chance.standard_normal(300)) + load.max(axis=1)
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f"[rank{rank}]: [Epoch 0, Batch {n}] load: {ms:.2f}ms | backward: {took - ms:.2f}ms\n"
            for n, (own, took) in enumerate(zip(load.tolist(), step.tolist(), strict=True), 1)
            for rank, ms in enumerate(own)
        )
    )
    found = json.loads(kair("triage", str(log), "--gpu-cost", "2", "--json").out)["data"]
    (finding,) = found["findings"]
    assert (found["verdict"], finding["ranks"], finding["cause"]) == ("straggler", [2], "input")
    assert finding["since"] == pytest.approx(151, abs=2)
    assert finding["time_lost_us_per_step"] == pytest.approx(40_000, rel=0.06)
    assert finding["cost_per_day"] == pytest.approx(2 * finding["gpu_hours_per_day"])
    shown = kair("triage", str(log), "--fail-on", "straggler")
    assert shown.status == 10
    assert shown.out.count("rank 2 takes") == 1
    assert "rank 2" in kair("ticket", str(log)).out.splitlines()[0]
