"""The command on logs of NCCL's Inspector: what it answers, and what it cannot."""

from pathlib import Path

import pytest
from support.cli_samples import kair
from support.inspector_logs import MadeJob

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of eight ranks, of which rank 3 is late."""
    return MadeJob(late={3: 1.15}).write(tmp_path_factory.mktemp("made") / "logs")


@pytest.mark.slow
def test_triage_names_the_late_rank_and_its_status_follows(logs: Path) -> None:
    said = kair("triage", str(logs), "--fail-on", "straggler")
    assert said.status == 10
    assert "straggler: rank 3 (unknown" in said.out
    assert "came last to" in said.out
    assert "with operators" in said.out


@pytest.mark.slow
def test_steps_and_info_answer(logs: Path) -> None:
    assert "recorded and not sampled" in kair("steps", str(logs)).out
    assert "8 ranks on 1 host, 120 steps recorded" in kair("info", str(logs)).out


def test_what_needs_operators_says_so(logs: Path) -> None:
    said = kair("blame", str(logs))
    assert said.status == 3
    assert "NCCL's Inspector recorded collectives alone" in said.err
