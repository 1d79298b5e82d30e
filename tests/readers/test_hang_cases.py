"""Hung jobs as logs and NCCL's RAS describe them (tests/cases/hangs): whom the triage of each accuses, and why."""

from pathlib import Path
from typing import Any

import pytest
from support.cases import cases_of, name_of, require_expected

from kair_engine.errors import InputError
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import Finding
from kair_engine.triage.analysis import triage


def opened(job: Path, cache: Path) -> dict[str, Any]:
    """The job, which is a file where the folder has just one, and its triage; or the words in which it is refused."""
    files = [*job.iterdir()]
    try:
        trace = open_trace(files[0] if len(files) == 1 else job, cache=cache)
    except InputError as error:
        return {"error": str(error).replace(f"{job}/", ""), "hint": error.hint}
    result = triage(trace)
    return {
        "job": {"format": trace.job.format, "ranks": trace.job.ranks, "world_size": trace.job.world_size},
        "verdict": result.verdict,
        "warnings": [[one.code, one.message] for one in (*trace.job.warnings, *result.warnings)],
        "findings": [row for one in result.findings for row in rows(one)],
    }


def rows(finding: Finding) -> list[dict[str, Any]]:
    """The finding, and its evidence."""
    own = {name: getattr(finding, name) for name in ("cause", "ranks", "seen_on", "operator")}
    return [
        own,
        *({name: getattr(one, name) for name in ("kind", "about", "ranks", "figures")} for one in finding.evidence),
    ]


@pytest.mark.parametrize("case", cases_of("hangs"), ids=name_of)
def test_a_hang_is_judged_as_its_case_says(case: Path, tmp_path: Path) -> None:
    require_expected(case, opened(case / "job", tmp_path))
