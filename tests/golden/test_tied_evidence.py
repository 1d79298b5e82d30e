"""nvidia-smi's CSV beside Kineto traces: a rank's device is taken for the one of its number, as an assumption."""

import json
import shutil
from pathlib import Path

import pytest
from support.cli_samples import kair
from support.places import CASES2

CASE = CASES2 / "smi_csv_not_tied" / "input"
pytestmark = pytest.mark.skipif(not CASE.is_dir(), reason="the cases are not beside the checkout")


def copied(to: Path, columns: frozenset[str], host: str) -> Path:
    """The case with these columns of its CSV left out, in the folder of a host."""
    shutil.copytree(CASE, to, ignore=shutil.ignore_patterns("evidence"))
    lines = (CASE / "evidence" / "host=gpu-n1" / "clock.csv").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    kept = [at for at, name in enumerate(rows[0]) if name not in columns]
    path = to / "evidence" / f"host={host}" / "clock.csv"
    path.parent.mkdir(parents=True)
    path.write_text("".join(", ".join(row[at] for at in kept) + "\n" for row in rows))
    return to


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [(), ("uuid",), ("uuid", "pci.bus_id"), ("pci.bus_id",)], ids=str)
def test_the_hot_device_may_be_the_cause(left_out: tuple[str, ...], tmp_path: Path) -> None:
    folder = copied(tmp_path / "job", frozenset(left_out), "gpu-n1")
    document = json.loads(kair("triage", str(folder), "--json").out)
    answer = document["data"]
    (finding,) = answer["findings"]
    assert (finding["ranks"], finding["cause"]) == ([3], "compute")
    thermal = next(one for one in finding["explanations"] if one["part"] == "thermal")
    assert (thermal["word"], thermal["joined_by"]) == ("consistent", "ordinal")
    assert (thermal["own"], thermal["peers"]) == (1395, 1980)
    assert all(one["word"] != "explains" for one in finding["explanations"]), "it rests on an assumption"
    assert "evidence_not_tied" not in {one["code"] for one in document["warnings"]}


@pytest.mark.slow
def test_what_is_tied_to_nobody_is_not_asked_for_again(tmp_path: Path) -> None:
    outcome = kair("triage", str(copied(tmp_path / "job", frozenset(), "elsewhere")))
    assert "read, but not matched with this rank (see the warning): its device's temperature" in outcome.out
    assert "2,856 readings of 8 devices of elsewhere are not tied to ranks 0-7" in outcome.err
    assert "host=NAME/" in outcome.err
