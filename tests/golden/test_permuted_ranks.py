"""Who is which rank changes no answer: the ranks of simulated 3D jobs renumbered at random."""

import gzip
import json
import random
from pathlib import Path

import pytest
from support.answers import triaged
from support.places import CASES

from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage


def renumbered(case: Path, folder: Path, new: list[int], *, in_order: bool) -> Path:
    """The recordings with rank r called `new[r]`; groups list their ranks in order, as PyTorch does, or as before."""

    def of_all(ranks: list[int]) -> list[int]:
        renamed = [new[rank] for rank in ranks]
        return sorted(renamed) if in_order else renamed

    folder.mkdir()
    for path in case.glob("*.gz"):
        content = json.loads(gzip.decompress(path.read_bytes()))
        stated = content["distributedInfo"]
        stated["rank"] = new[stated["rank"]]
        for group in stated["pg_config"]:
            group["ranks"] = of_all(group["ranks"])
        for args in (
            event["args"] for event in content["traceEvents"] if "Process Group Ranks" in event.get("args", {})
        ):
            args["Process Group Ranks"] = str(of_all(json.loads(args["Process Group Ranks"])))
            args.update({end: new[args[end]] for end in ("Src Rank", "Dst Rank") if end in args})
        (folder / f"rank_{stated['rank']}.json").write_text(json.dumps(content))
    return folder


def found(result: TriageResult, new: list[int]) -> list[tuple[str, list[int]]]:
    return [(one.cause, sorted(new[rank] for rank in one.ranks)) for one in result.findings]


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason="needs ../shared")
@pytest.mark.parametrize(
    ("case", "in_order", "seed"),
    [
        ("sequence_imbalance_3d", True, 2),
        pytest.param("sequence_imbalance_3d", False, 5, marks=pytest.mark.slow),
        pytest.param("slow_link_3d", True, 5, marks=pytest.mark.slow),
        pytest.param("slow_link_3d", False, 2, marks=pytest.mark.slow),
    ],
)
def test_renumbered_ranks_change_no_answer(tmp_path: Path, case: str, in_order: bool, seed: int) -> None:
    usual, new = triaged(CASES / case / "input"), list(range(16))
    random.Random(seed).shuffle(new)
    job = renumbered(CASES / case / "input", tmp_path / "job", new, in_order=in_order)
    result = triage(open_trace(job, cache=tmp_path / "cache"))
    assert result.verdict == usual.verdict
    assert found(result, list(range(16))) == found(usual, new)
    for one, other in zip(result.findings, usual.findings, strict=True):
        assert one.time_lost_us_per_step == pytest.approx(other.time_lost_us_per_step, rel=0.02)
    assert sorted(one.code for one in result.warnings) == sorted(one.code for one in usual.warnings)
