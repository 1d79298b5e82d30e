"""`kair donate`: a gift is judged as its job is, and none of the job's own strings is in it."""

import io
import json
import tarfile
from pathlib import Path

import donations
import pyarrow as pa
import pytest
from support import kineto_builder as kb
from support.answers import once, shared_cache
from support.cli_samples import kair, store_variables
from support.places import BYTEDANCE, CASES, CASES2, MEGATRON, SAMPLES

from kair_engine.trace.model import GIFT

JOB = SAMPLES / "slow_operator"
SECRETS = ("zanzibar", "quokka", "mongoose", "wombat", "narwhal", "4242")
OF_CASES = (
    CASES / "slow_link_3d" / "input",
    CASES / "nsys_graph_level" / "input",
    CASES2 / "half_the_gpus_older" / "input",
    CASES2 / "rl_rollout_lengths" / "input",
    MEGATRON,
    BYTEDANCE / "trace-ST.parquet",
)


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [*(one for one in sorted(SAMPLES.iterdir()) if one.is_dir() and one.name[0] != "_"), *OF_CASES], ids=str
)
def test_a_gift_is_judged_as_its_job_and_no_string_of_it_is_in_there(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not job.exists():
        pytest.skip("not beside this checkout")
    monkeypatch.setattr(donations, "triage", once(donations.triage))  # other tests ask the same of the job
    found = donations.check(job, tmp_path, shared_cache())
    assert found.compared > 0
    assert (found.differences, found.survivors) == ((), frozenset())


@pytest.mark.slow
def test_names_of_a_user_are_nowhere_in_a_gift(tmp_path: Path) -> None:
    folder = tmp_path / "wombat_run"
    for rank in range(2):
        events = kb.training_steps(4)
        events += [
            kb.annotation("zanzibar.forward", 10810, 300),
            kb.op("quokka::attention_forward", 10820, 100, **{"Input Dims": [[4242, 8], [8, 4242]]}),
            kb.launch(10830, 5, 91),
            kb.kernel("void mongoose::ops::flash_fwd_kernel<Narwhal, 4242>(float*)", 10840, 60, 91),
        ]
        kb.write(folder / f"narwhal_rank{rank}.json", kb.trace(events, rank=rank, world=2))
    gift = tmp_path / "gift.tar.zst"
    done = kair("donate", str(folder), "-o", str(gift))
    assert (done.status, done.err) == (0, "")
    content = pa.CompressedInputStream(pa.OSFile(str(gift)), "zstd").read().lower()
    assert [one for one in SECRETS if one.encode() in content] == []
    assert b"flash_fwd_kernel" in content


@pytest.mark.slow
def test_it_says_what_is_in_the_gift_and_the_gift_is_opened(tmp_path: Path) -> None:
    gift = tmp_path / "gift.tar.zst"
    done = kair("donate", str(JOB), "-o", str(gift))
    assert (done.status, done.err) == (0, "")
    first, *rest = done.out.splitlines()
    assert first == f"{gift}: verdict, ranks, cause and price as in the job (straggler)"
    assert [line.partition(":")[0] for line in rest] == [
        "kept",
        "replaced",
        "reduced",
        "left out",
        "could still identify the model",
    ]
    answer = json.loads(kair("triage", str(gift), "--json").out)["data"]
    assert (answer["verdict"], answer["findings"][0]["ranks"]) == ("straggler", [2])
    assert kair("import", str(gift), "--job", "given").status == 0
    kept = json.loads(kair("triage", "given", "--json").out)["data"]
    assert kept["findings"] == answer["findings"]


@pytest.mark.slow
def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    gift = tmp_path / "gift.tar.zst"
    gift.write_text("mine")
    done = kair("donate", str(JOB), "-o", str(gift))
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"kair: error: {gift} exists\n")
    assert gift.read_text() == "mine"


@pytest.mark.slow
def test_without_a_file_the_names_that_stay_are_listed() -> None:
    done = kair("donate", str(JOB))
    assert done.status == 0
    assert "nothing is written (-o FILE); names kept:\n" in done.out
    assert "  aten::mm\n" in done.out
    assert "kair_sample" not in done.out


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("-o", "gift.zip"), 2, "gift.zip: a gift's name ends in .tar.zst"),
        (("--step", "5"), 2, "a gift holds all steps"),
    ],
)
def test_what_cannot_be_donated_is_said(arguments: tuple[str, ...], status: int, says: str) -> None:
    done = kair("donate", str(JOB), *arguments)
    assert (done.status, done.out) == (status, "")
    assert says in done.err


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(200) + b"PAR1"])
def test_a_damaged_gift_is_turned_down(content: bytes, tmp_path: Path) -> None:
    gift = tmp_path / "gift.tar"
    with tarfile.open(gift, "w") as archive:
        entry = tarfile.TarInfo("gift/folder_1/part_0")
        entry.size = len(GIFT) + len(content)
        archive.addfile(entry, io.BytesIO(GIFT + content))
    done = kair("triage", str(gift))
    assert (done.status, done.out) == (3, "")
    assert "part_0 is damaged" in done.err
