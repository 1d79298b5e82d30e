"""Logs of a 1F1B pipeline whose links have delays, made by hand: the dependencies alone decide when operations run."""

from collections.abc import Callable

STAGES, BATCHES = 4, 12
FORWARD_MS, BACKWARD_MS, LINK_MS = 30.0, 60.0, 2.0
Delay = Callable[[int, int, int], float]
"""(iteration, lower stage, higher stage) → ms that a transfer between them takes."""
Compute = Callable[[int, int], float]
"""(iteration, stage) → how many times as long the stage computes."""


def logs(iterations: int, delay: Delay = lambda *_: LINK_MS, compute: Compute = lambda *_: 1.0) -> list[str]:
    """Per stage its log: `[RANK2] F @ begin (ms) to end (ms), …`, a line an operation."""
    lines: list[list[str]] = [[] for _ in range(STAGES)]
    begin = 1_700_000_000_000.0
    for iteration in range(iterations):
        for stage in range(STAGES):
            lines[stage].append(f"Iteration {iteration}")
        ends = _ends(iteration, delay, compute)
        for stage in range(STAGES):
            for kind, batch in _order(stage):
                end = ends[stage, kind, batch]
                lasted = _lasts(kind) * compute(iteration, stage) * _noise(iteration, stage, batch)
                text = f"{kind} @ {begin + end - lasted:.3f} (ms) to {begin + end:.3f} (ms), cudaEventElapsed = 0"
                lines[stage].append(f"[RANK{stage}] {text}")
        begin += max(ends.values()) + 50
    return ["\n".join(of) for of in lines]


def _order(stage: int) -> list[tuple[str, int]]:
    warm = STAGES - 1 - stage
    order = [("F", batch) for batch in range(warm)]
    for batch in range(BATCHES - warm):
        order += [("F", warm + batch), ("B", batch)]
    return order + [("B", batch) for batch in range(BATCHES - warm, BATCHES)]


def _ends(iteration: int, delay: Delay, compute: Compute) -> dict[tuple[int, str, int], float]:
    ends: dict[tuple[int, str, int], float] = {}
    left = {stage: _order(stage) for stage in range(STAGES)}
    free = dict.fromkeys(range(STAGES), 0.0)
    while any(left.values()):
        for stage, order in left.items():
            while order:
                kind, batch = order[0]
                neighbour = stage - 1 if kind == "F" else stage + 1
                arrives = 0.0
                if 0 <= neighbour < STAGES:
                    if (neighbour, kind, batch) not in ends:
                        break
                    lower, higher = sorted((stage, neighbour))
                    arrives = ends[neighbour, kind, batch] + delay(iteration, lower, higher)
                lasts = _lasts(kind) * compute(iteration, stage) * _noise(iteration, stage, batch)
                free[stage] = ends[stage, kind, batch] = max(free[stage], arrives) + lasts
                order.pop(0)
    return ends


def _lasts(kind: str) -> float:
    return FORWARD_MS if kind == "F" else BACKWARD_MS


def _noise(iteration: int, stage: int, batch: int) -> float:
    """A percent more or less."""
    return 1 + ((7 * iteration + 5 * stage + 3 * batch) % 5 - 2) / 200
