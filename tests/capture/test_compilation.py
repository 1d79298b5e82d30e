"""What torch.compile compiles in a running job: seen in every step, and named by the history alone."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import fault
import pytest

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(find_spec("torch") is None, reason="training needs torch: pip install 'kair[record]'"),
]


def test_a_rank_that_recompiles_is_named_by_the_steps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support import compiling_job

    monkeypatch.setenv("KAIR_MAX_OVERHEAD", "0%")
    ranks = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "3"]
    places = fault.watched([*ranks, compiling_job.__file__], tmp_path, leave_after_s=1, sampling="0")
    assert not (places.folder / "job.json").exists()
    command = [sys.executable, "-m", "kair_tui", "triage", places.job, "--store", str(places.store), "--json"]
    done = subprocess.run(command, cwd=fault.ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["data"]
    (accused,) = (one for one in found["findings"] if one["ranks"])  # a busy machine is nobody's fault
    assert (accused["ranks"], accused["cause"]) == ([compiling_job.COMPILING_RANK], "compilation")
    assert "compiles" in {one["kind"] for one in accused["evidence"]}
