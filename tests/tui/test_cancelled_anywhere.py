"""Wherever a question is cancelled, nothing half made is left: asked again it is answered as if it never had been."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.answers import recorded
from support.cli_samples import store_variables
from support.places import MEGATRON, SAMPLES

from kair.app.jobs import JobSource
from kair.app.question import Question
from kair_engine.cancelling import Cancelled
from kair_tui.tui.session import Session

PLACES = 5
"""At so many of its checkpoints a question is cancelled."""


class Patience:
    """Wants an answer until it was asked so many times."""

    def __init__(self, most: int) -> None:
        self.most, self.asked = most, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked <= self.most


@pytest.mark.slow
@pytest.mark.parametrize("path", [SAMPLES / "slow_operator", SAMPLES / "pipeline_slow_operator", MEGATRON])
@pytest.mark.parametrize("command", ["triage", "whatif", "blame"])
def test_asked_again_it_is_answered_alike(
    command: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not path.exists():
        pytest.skip("no such recording here")
    store_variables(monkeypatch, tmp_path)
    # Steps are replayed one by one as those of large jobs are, and read anew each time as of a job just opened.
    monkeypatch.setattr("kair_engine.whatif.operators.batches._MOST_ROWS", 1)
    question, patient = Question.of(command), Patience(10**9)

    def opened() -> Session:
        return Session(replace(recorded(path), memory=None, known={}), JobSource(str(path), path, stored=False))

    answer = opened().ask(question, patient)
    assert patient.asked > PLACES
    for place in range(PLACES):
        session = opened()
        with pytest.raises(Cancelled):
            session.ask(question, Patience(patient.asked * place // PLACES))
        assert session.known(question) is None
        assert session.ask(question) == answer
