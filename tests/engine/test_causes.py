"""A cause is one row of the table, and the code that detects it: all that is said and done about it follows."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from support.cli_samples import kair, store_variables
from support.places import SAMPLES

from kair_engine.causes import CAUSES, CauseRow
from kair_engine.triage import findings
from kair_engine.triage.ranks.diagnosis import Diagnosis
from kair_tui.cli.registry import find
from kair_tui.commands.schema import schema_of

THROTTLED = CauseRow(
    words="thermal throttling",
    time_class="compute",
    spends_on="computing at {their} lower clock",
    suggestion="Look at the fans beside {who}{operator}.",
    fix_kind="compute",
    undone="at full clock",
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The first finding of a job with one slow rank, which is detected as a cause that the product does not know."""
    store_variables(monkeypatch, tmp_path)
    monkeypatch.setitem(CAUSES, "throttling", THROTTLED)  # read-only for the product alone
    monkeypatch.setattr(findings, "diagnose", lambda *_, **__: Diagnosis("throttling"))
    outcome = kair("triage", str(SAMPLES / "slow_operator"), "--json")
    assert outcome.status == 0, outcome.err
    document: dict[str, Any] = json.loads(outcome.out)
    entry = find("triage")
    assert entry is not None
    Draft202012Validator(schema_of(entry)).validate(document)
    finding: dict[str, Any] = document["data"]["findings"][0]
    return {**finding, "summary": document["data"]["summary"]}


@pytest.mark.slow
def test_its_row_says_and_does_the_rest(told: dict[str, Any]) -> None:
    assert told["cause"] == "throttling"
    assert told["summary"].startswith("straggler: rank 2 (thermal throttling, ")
    assert told["suggestion"] == "Look at the fans beside rank 2 (kair_sample::mlp)."
    assert told["priced_by"] == "replay"
    (replayed,) = [one for one in told["evidence"] if one["kind"] == "replayed"]
    assert replayed["sentence"].startswith("replayed at full clock, a step takes ")
    assert replayed["command"] == "kair whatif --fix rank=2+kind=compute"


def test_every_row_is_complete() -> None:
    for name, row in CAUSES.items():
        said = [row.suggestion, row.group_suggestion, row.job_wide_suggestion or ""]
        for text in said:
            text.format(who="rank 3", Who="Rank 3", rank=3, operator=" (mlp)", device="", fuse="x", warm_up="x")
        assert row.words
        assert row.spends_on.format(their="its")
        assert row.fix_kind is None or row.remedy is None, name
