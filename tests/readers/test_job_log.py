"""Time-outs of NCCL's watchdog in logs beside other recordings, and on the terminal; tests/cases/hangs has the rest."""

import shutil
from pathlib import Path

import pytest
from support.cases import CASES
from support.cli_samples import kair
from support.places import SAMPLES

from kair_engine.recording.opening import open_trace

LOG = CASES / "hangs" / "job_log" / "one_rank_is_not_in_the_call" / "job" / "job.log"


@pytest.mark.slow
def test_a_log_beside_traces_changes_nothing(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "slow_host", tmp_path / "job")
    shutil.copy(LOG, tmp_path / "job" / "train.log")
    trace = open_trace(tmp_path / "job", cache=tmp_path / "cache")
    assert (trace.job.format, trace.job.progress) == ("kineto", {})


def test_a_log_that_is_not_read_is_refused_in_one_line_and_a_hint() -> None:
    refused = kair("triage", str(CASES / "hangs" / "job_log" / "log_of_nccl" / "job"))
    assert (refused.status, "hint: " in refused.err, refused.err.count("\n")) == (3, True, 2)


def test_names_in_a_log_reach_the_terminal_as_text(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(LOG.read_text().replace("ALLREDUCE", "\x1b[31mALLREDUCE\x1b[0m"))
    outcome = kair("triage", str(tmp_path / "job.log"))
    assert outcome.status == 0 and "\x1b" not in outcome.out + outcome.err
    assert outcome.out.startswith("straggler: rank 5 ")
