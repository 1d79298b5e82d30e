"""What cannot be asked or done is said in a line and a hint, with the exit status that belongs to it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import kineto_builder as kb
from support.cli_samples import kair, store_variables
from support.kept_cases import KeptCase, kept_cases
from support.places import SAMPLES
from support.probes import around, machine, recording, written

from kair_mitigate.job_state import StateWriter
from kair_mitigate.plans import Plan, State
from kair_mitigate.records import Records


@pytest.fixture(scope="module")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with traces, a job of them, evidence, probes of two machines, and what is nothing of that."""
    place = tmp_path_factory.mktemp("refused")
    (place / "samples").symlink_to(SAMPLES)
    (place / "empty").mkdir()
    (place / "milk.txt").write_text("milk\n")
    (place / "model.pt").write_bytes(b"PK\x03\x04" + b"\0" * 26 + b"model/data.pkl\x80\x02}q\0.")
    (place / "table.csv").write_text("epoch,loss\n1,2.5\n")
    (place / "smi.csv").write_text("timestamp, index, utilization.gpu [%]\n2026/01/01 00:00:00.000, 0, 93 %\n")
    (place / "wandb" / "run-ab" / "files").mkdir(parents=True)
    (place / "wandb" / "run-ab" / "run-ab.wandb").write_bytes(b":W&B\xe1\xbe\0" + b"\0" * 100)
    (place / "dmesg.txt").write_text("2026-11-27T14:03:20,123456+00:00 NVRM: Xid (PCI:0000:1b:00): 79, pid=1896\n")
    for name, device, tflops in (("peer", "H100", 6e5), ("slow", "H100", 5e5), ("other", "A100", 6e5)):
        written(place / f"{name}.json", recording(machine(name, device=device), gpu_matrix_product=around(tflops)))
    for rank in (0, 1):
        content = kb.trace(kb.training_steps(3), rank=rank, world=2, baseTimeNanoseconds=1_795_788_180 * 10**9)
        kb.write(place / "traces" / f"rank{rank}.json.gz", content)
    with pytest.MonkeyPatch.context() as patch:
        store_variables(patch, place)
        patch.chdir(place)
        patch.setenv("KAIR_JOB", "samples/slow_operator")
        Records(place / "store" / "job7" / "mitigate")
        state = State(1, 0, 960, 40, Plan(0, 0, (8, 8, 8)))
        StateWriter(place / "store" / "job7" / "mitigate", 0).write(state, 2000, 2)
        assert kair("import", "traces", "--job", "job1").status == 0
        before = {*place.iterdir()}
        yield place
        assert {*place.iterdir()} == before and not (place / "store/job7/mitigate/plan.json").exists(), (
            "nothing is written"
        )


@pytest.mark.parametrize("case", kept_cases("refused"), ids=str)
def test_what_cannot_be_done_is_said_in_one_line(case: KeptCase, _place: Path) -> None:
    outcome = kair(*shlex.split(case.given["line"]))
    assert outcome.status and not outcome.out
    told = re.sub(r"Errno \d+", "Errno", outcome.err.replace(str(_place), "PLACE")).splitlines()
    first, *more = (line for line in told if not line.startswith(("kair: using", "kair: warning")))
    assert first.startswith("kair: error: ") and all(line.startswith("hint: ") for line in more)
    assert len(more) <= 1 and "secret" not in outcome.err
    case.assert_said([outcome.status, first, *more])
