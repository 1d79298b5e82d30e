"""What is fitted to recordings is what they were drawn with."""

import numpy as np
import pytest
from fit_noise import FIGURES, class_of, fitted, own_times
from noise_models import autoregressive

SPREAD, SIGMA, RHO, COMMON, RARE, LONGER = 0.08, 0.1, 0.5, 0.08, 0.02, 0.8


def drawn(seed: int, ranks: int) -> dict[str, float]:
    """The fit of a take of 40 steps."""
    rng = np.random.default_rng(seed)
    logs = autoregressive(40, ranks, RHO, SIGMA, rng)
    logs[rng.random(logs.shape) < RARE] = LONGER
    logs += rng.normal(0, SPREAD, ranks) + rng.normal(0, COMMON, 40)[:, None]
    return dict(zip(FIGURES, fitted(1e8 * np.exp(logs)), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 6])
def test_the_fit_of_many_takes_is_what_they_were_drawn_with(ranks: int) -> None:
    fits = [drawn(seed, ranks) for seed in range(120)]
    usual = {name: float(np.median([fit[name] for fit in fits])) for name in FIGURES}
    assert usual["sigma"] == pytest.approx(SIGMA, rel=0.2)
    assert usual["rho"] == pytest.approx(RHO, abs=0.15)
    assert usual["rare"] == pytest.approx(RARE, abs=0.01)
    assert usual["longer"] == pytest.approx(LONGER, rel=0.3)
    assert usual["common"] == pytest.approx(COMMON, rel=0.5)
    assert np.mean([fit["spread"] ** 2 for fit in fits]) == pytest.approx(SPREAD**2, rel=0.4)
    assert usual["again"] == 0


def test_only_healthy_takes_of_peers_and_many_steps_are_fitted() -> None:
    step = {"begin_ns": 0, "end_ns": 10, "run_ns": 8, "delay_ns": 1}
    step |= {"injected_wall_ns": 0, "injected_run_ns": 0, "injected_delay_ns": 0}
    take = {"ranks": 2, "parallel": "ddp", "faults": [], "load": "none", "pinning": "own_core"}
    document = {"take": take, "stops": [], "ranks": [{"steps": [step] * 12}] * 2}
    assert class_of(take) == "own cores"
    assert class_of(take | {"load": "bursts"}) == "under load"
    assert class_of(take | {"pinning": "none"}) == "shared cores"
    own = own_times(document)
    assert own is not None
    assert own.tolist() == [[9, 9]] * 12
    assert own_times(document | {"take": take | {"parallel": "stages"}}) is None
    assert own_times(document | {"take": take | {"faults": [{"kind": "sleep", "ranks": [0]}]}}) is None
    assert own_times(document | {"ranks": [{"steps": [step] * 11}] * 2}) is None
