"""A slow device is told by kernels that all take the same ratio longer; figures by hand."""

import numpy as np
import pytest
from support.excess_builder import COMPUTE, HOST, STEP_NS, job, nothing

from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.results.triage import Evidence
from kair_engine.triage.ranks.whole_device import slower_throughout

STEPS, RANKS, SLOW = 6, 4, 3
KERNELS = ("gemm", "flash", "norm", "copy", "adam")


def made(of_kernels: dict[str, float], in_all: float, *, on_device: bool = True, ranks: int = RANKS) -> JobExcess:
    """The last rank computes for 80 % of the step, `in_all` of that beyond its peers; kernels take 5 % and that."""
    slow = np.eye(ranks)[ranks - 1]
    percents = nothing(STEPS, ranks)
    percents[:, COMPUTE] += in_all * slow
    kernels = {name: np.tile(excess * slow, (STEPS, 1)) for name, excess in of_kernels.items()}
    return job(percents, operators=kernels, on_device=on_device)


def told(of: JobExcess, row: int = COMPUTE, kind: str = "persistent") -> Evidence | None:
    last = len(of.ranks) - 1
    return slower_throughout(of, Anomaly(kind, (last,), row, 0.001, STEP_NS / 10))  # type: ignore[arg-type]


def test_all_kernels_a_quarter_longer_are_a_slower_device() -> None:
    """Peers compute for 64 % of the step, this rank for 80: 1.25 times. So it is in each kernel of 5 %: 1.25 % more."""
    found = told(made(dict.fromkeys(KERNELS, 1.25), 16))
    assert found is not None
    assert (found.kind, found.ranks) == ("whole_device", (SLOW,))
    assert found.figures == pytest.approx(
        {"ratio": 1.25, "least_ratio": 1.25, "most_ratio": 1.25, "kernels": 5, "peers": 3}
    )


def test_kernels_need_not_take_exactly_as_much_longer() -> None:
    found = told(made(dict(zip(KERNELS, (0.8, 1.25, 1.5, 1.25, 1.0), strict=True)), 16))
    assert found is not None
    assert (found.figures["ratio"], found.figures["least_ratio"]) == pytest.approx((1.25, 1.16))


def test_of_two_ranks_the_median_lies_between() -> None:
    """What is 16 % and 1.25 % beyond its peer is half of that beyond the median, from which excesses are counted."""
    of = made(dict.fromkeys(KERNELS, 0.625), 8, ranks=2)
    found = told(of)
    assert found is not None
    assert (found.figures["ratio"], found.figures["peers"]) == pytest.approx((1.25, 1))


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(made({**dict.fromkeys(KERNELS, 0.0), "gemm": 16.0}, 16), id="one kernel alone"),
        pytest.param(made(dict.fromkeys(KERNELS, 0.0), 16), id="only what is in no kernel of these"),
        pytest.param(made({"gemm": 1.25, "flash": 1.25, "norm": 1.25}, 16), id="too few kernels"),
        pytest.param(made(dict.fromkeys(KERNELS, 1.25), 16, on_device=False), id="threads"),
        pytest.param(made(dict.fromkeys(KERNELS, -1.0), -8), id="a faster one"),
    ],
)
def test_what_is_no_slower_device(of: JobExcess) -> None:
    assert told(of) is None


def test_delays_now_and_then_or_of_the_host_are_none() -> None:
    of = made(dict.fromkeys(KERNELS, 1.25), 16)
    assert told(of, row=HOST) is None
    assert told(of, kind="intermittent") is None
