"""Every analysis on a real recording, in every format, as a runbook would call it."""

import json
from pathlib import Path

import pytest
from support.cli_samples import ARGUMENTS, RESULTS, assert_valid, kair
from support.places import MEGATRON, SAMPLES

SOURCES = [
    pytest.param(MEGATRON, marks=pytest.mark.slow),
    pytest.param(SAMPLES / "slow_operator", marks=pytest.mark.slow),
    SAMPLES / "healthy",
]


pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture(params=SOURCES, ids=lambda path: path.name)
def source(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return path


def arguments(command: str) -> tuple[str, ...]:
    """What the command cannot do without; how small each kind of fault may be takes seconds: golden/ asks that."""
    least = ("--fault", "slow_input", "--draws", "20") if command == "sensitivity" else ()
    return (*ARGUMENTS.get(command, ()), *least)


@pytest.mark.parametrize("command", RESULTS)
def test_json_is_what_the_schema_says(source: Path, command: str) -> None:
    outcome = kair(command, str(source), *arguments(command), "--json")
    assert outcome.status == 0, outcome.err
    document = json.loads(outcome.out)
    assert_valid(document, command)
    assert document["job"]["name"] == source.name


@pytest.mark.parametrize("command", RESULTS)
@pytest.mark.parametrize("output", ["table", "wide", "tree", "ndjson", "csv"])
def test_every_format_answers(source: Path, command: str, output: str) -> None:
    outcome = kair(command, str(source), *arguments(command), "-o", output)
    assert outcome.status == 0, outcome.err
    assert outcome.out


def test_blame_of_one_step_says_which(source: Path) -> None:
    step = json.loads(kair("info", str(source), "--json").out)["data"]["steps"][0]
    document = json.loads(kair("blame", str(source), "--step", str(step), "--json").out)
    assert document["data"]["step"] == step
    assert document["job"]["steps"] == [step]


def test_sensitivity_of_a_single_step_is_one_clear_line() -> None:
    outcome = kair("sensitivity", str(SAMPLES / "healthy"), "--step", "4")
    assert outcome.status == 0
    first, empty, rest, *more = outcome.out.splitlines()
    assert first.startswith("this recording has no smallest fault that can be stated: 1 step")
    assert (empty, more) == ("", [])
    assert ", of step 4 alone; " in rest


@pytest.mark.slow
def test_sensitivity_says_what_more_steps_would_bring() -> None:
    outcome = kair("sensitivity", str(SAMPLES / "healthy"), "--draws", "20", "--fault", "slow_device")
    assert outcome.out.startswith("in 12 steps a slow device is found with 95 % probability from +")
    assert "24 steps  60 steps  120 steps" in outcome.out
    assert "record " in outcome.out
    assert "seed 0" in outcome.out
