"""Fit what healthy ranks' own time did in the recordings, for the simulator's noise models.

python validation/real/fit_noise.py validation/real/answers{,_captured,_own,_captured_own}.json.xz \
    --out validation/accuracy/fitted_noise.json

Of each healthy take with peers and FEWEST_STEPS steps, from what was measured in each rank's steps (truth.py), not from
the trace: how far ranks differ for good, how noisy they are, how unequally, how much one step says of the next one, how
often a step takes far longer than usual and by how much, whether the next one does then, and what all ranks share.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from kept_answers import read_answers
from take_report import aligned
from truth import peers, step_parts

Floats = npt.NDArray[np.float64]
FEWEST_STEPS: Final = 12
"""Of fewer steps the autocorrelation says nothing."""
FAR: Final = 4.0
"""Deviations above its median from which on a step counts as one of those that take far longer."""
_TO_SIGMA: Final = 1.4826
_OF_MEDIAN: Final = np.pi / 2
"""The variance of a median of normal values, of that of their mean."""
FIGURES: Final = ("spread", "sigma", "unequal", "rho", "common", "rare", "longer", "again")
CLASSES: Final = ("own cores", "shared cores", "under load")


def main() -> None:
    """Writes the fits, and prints what they are like."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, nargs="+", help="files that evaluate.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    options = parser.parse_args()
    fits: dict[str, list[list[float]]] = {name: [] for name in CLASSES}
    for path in options.answers:
        for one in read_answers(path):
            if (own := own_times(one["document"])) is not None:
                fits[class_of(one["document"]["take"])].append([float(f"{figure:.3g}") for figure in fitted(own)])
    text = json.dumps({"figures": FIGURES, "takes": fits}, separators=(",", ":"))
    options.out.write_text(text.replace("],[", "],\n["), encoding="utf-8")
    print(aligned(list(table(fits))))


def class_of(take: dict[str, Any]) -> str:
    """Which of CLASSES a take belongs to."""
    if take["load"] != "none":
        return "under load"
    return "own cores" if take["pinning"] == "own_core" and take["ranks"] <= 2 else "shared cores"


def own_times(document: dict[str, Any]) -> Floats | None:
    """(steps × ranks) own time of a healthy take's peers, ns; None of others, and of those that are too short."""
    if document["take"]["faults"] or len(peers(document, 0)) + 1 != len(document["ranks"]):
        return None
    own = np.array([[parts.own for parts in step_parts(document, rank)] for rank in range(len(document["ranks"]))]).T
    return own.astype(float) if len(own) >= FEWEST_STEPS and (own > 0).all() else None


def fitted(own: Floats) -> list[float]:
    """FIGURES of (steps × ranks) own times; all but `rho` and the shares are of the logarithm, so of the own time.

    What is far above a rank's median counts as one of the rare steps, and its deviation is no part of `sigma`, which is
    1.4826 times the median absolute deviation.
    """
    steps = len(own)
    logs = np.log(own)
    of_rank = np.median(logs, axis=0)
    beside = logs - of_rank
    common = _in_common(beside)
    rest = beside - common[:, None]
    sigmas = np.maximum(_TO_SIGMA * np.median(np.abs(rest), axis=0), 1e-4)
    sigma = float(np.median(sigmas))
    far = rest > FAR * sigmas
    near = np.where(far, 0.0, rest)
    before, after = near[:-1].ravel(), near[1:].ravel()
    # Short series show less of it than there is: by (1 + 3ρ)/S (Kendall 1954).
    told = float((before * after).sum() / max(float((near**2).mean() * before.size), 1e-12))
    rho = float(np.clip((told * steps + 1) / (steps - 3), 0.0, 0.95))
    # What medians of so few steps differ by, though ranks are alike, is not how ranks differ.
    by_luck = _OF_MEDIAN * sigma**2 * (1 + rho) / (1 - rho) / steps
    follows = float(far[1:][far[:-1]].mean()) if far[:-1].any() else 0.0
    return [
        float(np.sqrt(max(np.var(of_rank, ddof=1) - by_luck, 0.0))),
        sigma,
        float(np.std(np.log(sigmas), ddof=1)),
        rho,
        _TO_SIGMA * float(np.median(np.abs(common))),
        float(far.mean()),
        float(rest[far].mean()) if far.any() else 0.0,
        follows,
    ]


def _in_common(beside: Floats) -> Floats:
    """(steps): what all ranks' deviations share, as far as their mean tells it: in the share that is covariance."""
    ranks = beside.shape[1]
    # What a single step does to a rank is no covariance of the others.
    limited = np.clip(beside, *np.quantile(beside, (0.05, 0.95)))
    mean = limited.mean(axis=1)
    covariance = np.cov(limited.T)
    shared = float(covariance[~np.eye(ranks, dtype=bool)].mean())
    return np.asarray(np.clip(shared / max(float(mean.var(ddof=1)), 1e-12), 0.0, 1.0) * (mean - np.median(mean)))


def table(fits: dict[str, Sequence[Sequence[float]]]) -> Iterator[tuple[str, ...]]:
    """Rows of (figure, its quartiles and its ninth decile in each class)."""
    yield "median (quartiles; 90 %)", *(f"{name}, {len(of)} takes" for name, of in fits.items())
    for at, figure in enumerate(FIGURES):
        cells = []
        for of in fits.values():
            low, middle, high, most = np.quantile([one[at] for one in of], (0.25, 0.5, 0.75, 0.9)).tolist()
            cells.append(f"{middle:.3f} ({low:.3f}–{high:.3f}; {most:.3f})")
        yield figure, *cells


if __name__ == "__main__":
    main()
