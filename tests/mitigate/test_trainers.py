"""Jobs of other libraries' trainers: exact, complete, and resumed, while sizes are uneven and change."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import ranks

JOB = Path(__file__).parent / "jobs" / "trainers.py"
WAYS = {"accelerate": 2, "lightning": 2, "transformers": 6}
LONGEST_S = 600
"""Three ranks import these libraries at once."""


@pytest.mark.live
@pytest.mark.parametrize("library", WAYS)
def test_a_trainer_trains_as_one_process_would_whatever_sizes_are_ordered(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(library)
    monkeypatch.setattr(ranks, "PATIENCE_S", LONGEST_S)
    ranks.run_ranks(JOB, 3, library, str(tmp_path))
    found: dict[str, dict[str, Any]] = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert len(found) == WAYS[library]
    for way, one in found.items():
        assert one["away"] < 1e-6 < one["moved"], way
        assert one["once"] == [True, True], way
        assert one["left"], f"{way}: the run does not know that it left as ordered"
        ordered = [[5, 22, 21], [21, 5, 22], [24, 0, 24]]
        assert [size for size in one["sizes"] if size in ordered] == ordered, way
