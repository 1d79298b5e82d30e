"""Steps that became longer because cores ran short are told once, with the price of contention."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kair_engine.ranks import Rank
from kair_engine.results.triage import Evidence, Finding
from kair_engine.triage.grown_contention import grown_contention_us
from kair_engine.triage.replays import Replays
from kair_engine.whatif.model import Baseline, Counterfactual, ReplayedSteps, Undisturbed

MS = 1e6
RECORDED = np.array([100, 100, 100, 100, 180, 180, 180]) * MS


@dataclass
class Model:
    """Steps that take 90 ms without stops, and 85 ms if nothing takes longer than usual."""

    asked: list[Counterfactual] = field(default_factory=list)

    def replay(self, asked: list[Counterfactual]) -> ReplayedSteps:
        self.asked = asked
        without_stops = np.where(RECORDED > 150 * MS, 150, 90) * MS
        times = {Baseline.RECORDED: RECORDED, Undisturbed.USUAL: np.full(7, 85 * MS)}
        answers = [times[one] if isinstance(one, Baseline | Undisturbed) else without_stops for one in asked]
        return ReplayedSteps(tuple(range(1, 8)), RECORDED, np.stack(answers))

    def host_stops(self) -> object:
        return SimpleNamespace(cores=None)


def contention(pattern: str, *evidence: Evidence) -> Finding:
    whom = {"ranks": (Rank(1),), "seen_on": ()} if pattern == "persistent" else {"ranks": (), "seen_on": (Rank(0),)}
    made: dict[str, Any] = {"cause": "contention", "pattern": pattern, "hosts": (), "operator": None, "edge": None}
    made |= {"steps": (), "p_value": None, "time_lost_us_per_step": 1.0, "slowdown": 1.1, "evidence": evidence, **whom}
    return Finding(**made)


RANGE = Evidence("price_range", {"least_us": 1.0, "most_us": 2.0})


@pytest.mark.parametrize(
    ("finding", "grew_ms"),
    [
        (contention("job_wide"), 20),  # 30 ms are saved in the longer steps, 10 ms in the others
        (contention("job_wide", RANGE), 80),  # at most 95 and 15 ms
        (contention("persistent"), 0),
    ],
)
def test_what_a_lack_of_cores_costs_more_since_then(finding: Finding, grew_ms: float) -> None:
    replays = cast("Replays", SimpleNamespace(model=Model))
    assert grown_contention_us(replays, [finding], range(5, 8)) == pytest.approx(grew_ms * 1e3)


def test_steps_that_were_not_replayed_explain_nothing() -> None:
    replays = cast("Replays", SimpleNamespace(model=Model))
    assert grown_contention_us(replays, [contention("job_wide")], range(20, 30)) == 0
