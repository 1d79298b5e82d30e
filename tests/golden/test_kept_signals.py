"""What the core says of real jobs, by the signals that are kept of them: whoever changes it sees what that costs."""

import sys
from pathlib import Path

import pytest

REAL = Path(__file__).parents[2] / "validation" / "real"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[int, int]]:
    """Per row of the table (rightly counted, all), of the takes that nothing was tuned on."""
    monkeypatch.syspath_prepend(str(REAL))
    from kept_signals import ask

    ask(sorted((REAL / "core").glob("fresh_*.zip")), measured=True, each=False)
    rows = {}
    for line in capsys.readouterr().out.splitlines():
        name, _, of = line.rpartition(" of ")
        name, _, hits = name.rpartition(" ")
        rows[name.strip()] = (int(hits), int(of))
    for module in ("kept_signals", "evaluate", "captured", "kept_answers", "take_scoring", "truth"):
        sys.modules.pop(module, None)
    return rows


@pytest.mark.slow
def test_nobody_is_accused_of_healthy_jobs_and_faults_are_found(counts: dict[str, tuple[int, int]]) -> None:
    assert counts["accused of healthy jobs"] == (0, 39)
    assert counts["accused of innocent ranks"] == (0, 72)
    assert counts["found of 25 % and more"] == (5, 5)
    found, faults = counts["found of 10 % and more"]
    assert (found >= 11, faults) == (True, 12)
