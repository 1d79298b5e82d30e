"""What triage says of fresh recordings of each kind of situation that public reports tell of, and of healthy jobs.

python validation/accuracy/kinds.py --seed 1 --takes 3
python validation/accuracy/kinds.py --seed 7 8 9 --takes 2 --kinds ladder,free_all --keep /tmp/kinds --workers 2

Each kind is drawn anew by seed and take: layout, ranks, sizes, periods, culprits, clocks, names. What a fault costs is
the difference to the same job without it. Seeds below 1000 are for tuning. With --keep the recordings stay, each in
KIND-SEED-TAKE/input beside its truth.json.
"""

import argparse
import json
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
from kind_situations import KINDS, Truth, draw

from kair.app import investigate
from kair.app.question import Given
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.model import Trace
from kair_tui.render.triage import absorbed_lines, facts, part_lines, sentences, title, triage_in_words
from kair_tui.render.warnings import warnings_in_words


@dataclass(frozen=True)
class Scored:
    """One job: what is true of it, and what was said."""

    kind: str
    name: str
    truth: Truth
    verdict: str
    accused: tuple[int, ...]
    causes: tuple[str, ...]
    right_verdict: bool
    right: bool
    """Verdict, ranks and cause; nobody else accused."""
    untold: tuple[str, ...]
    """What should be in the text and is not: patterns, steps."""
    extra: tuple[str, ...]
    """Causes of what is told beside that accuses nobody, of a job in which one rank's fault is all there is."""
    ratio: float | None
    """The price over the truth, where what is wrong was found."""
    summary: str
    seconds: float

    @property
    def innocents(self) -> bool:
        """Whether somebody is accused who has nothing to do with it, of a job with a culprit or a job-wide fault."""
        return not self.truth.healthy and not set(self.accused) <= set(self.truth.ranks)


def main() -> None:
    """Draws, asks and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="below 1000 for tuning")
    parser.add_argument("--takes", type=int, default=2, help="of each kind")
    parser.add_argument("--kinds", help=f"separated by commas, of: {', '.join(KINDS)}")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the recordings and their truths")
    options = parser.parse_args()
    kinds = options.kinds.split(",") if options.kinds else list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such kinds: {', '.join(sorted(unknown))}")
    takes = list(product(options.seed, range(options.takes)))
    asked = [(kind, seed, take, options.keep) for kind in kinds for seed, take in takes]
    if options.workers > 1:
        with ProcessPoolExecutor(options.workers) as pool:
            scored = list(pool.map(answer, *zip(*asked, strict=True)))
    else:
        scored = [answer(*one) for one in asked]
    print(*table(scored), "", *wrong(scored, options.keep), sep="\n")


def triage(trace: Trace) -> TriageResult:
    """Return the whole investigation of a trace, in words."""
    return triage_in_words(investigate.triage(Given(trace))[0])


def answer(kind: str, seed: int, take: int, keep: Path | None) -> Scored:
    """Writes one job, asks and compares; what was written goes again unless it is kept."""
    name = f"{kind}-{seed}-{take}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name if keep is None else keep / name
        shutil.rmtree(folder, ignore_errors=True)
        truth = draw(kind, seed, take, folder / "input")
        (folder / "truth.json").write_text(json.dumps(asdict(truth), indent=1) + "\n")
        begin = time.perf_counter()
        result = triage(open_trace(folder / "input", cache=Path(temporary) / "cache", workers=1))
        return score(kind, name, truth, result, time.perf_counter() - begin)


def score(kind: str, name: str, truth: Truth, result: TriageResult, seconds: float = 0.0) -> Scored:
    """Compares the answer with the truth."""
    accusing = [one for one in result.findings if one.ranks and one.pattern != "job_wide"]
    accused = sorted({rank for one in accusing for rank in one.ranks})
    fitting = [one for one in result.findings if _fits(one, truth)]
    right_verdict = result.verdict in truth.verdicts
    found = bool(fitting) or not truth.cause or result.verdict in ("inconclusive", "no_straggler")
    text = in_words(result)
    untold = [pattern for pattern in truth.told if not re.search(pattern, text, re.IGNORECASE)]
    if truth.steps and not _tells_steps(truth.steps, result.findings, text):
        untold.append(f"steps {truth.steps}")
    if len(truth.ranks) > 1 and not _tells_price(truth.ms, result.summary):
        untold.append(f"{truth.ms:.2f} ms, which all cost together, in the first line")
    ranks_right = tuple(accused) == truth.ranks
    priced = fitting and ranks_right and truth.ms
    return Scored(
        kind,
        name,
        truth,
        result.verdict,
        tuple(accused),
        tuple(dict.fromkeys(one.cause for one in result.findings)),
        right_verdict,
        right_verdict and ranks_right and found,
        tuple(untold),
        tuple(
            one.cause for one in result.findings if truth.ranks and one not in (*accusing, *fitting) and _of_fault(one)
        ),
        _price_ms(result, fitting) / truth.ms if priced else None,
        result.summary,
        seconds,
    )


def in_words(result: TriageResult) -> str:
    """All that a user reads but the table of ranks."""
    lines = [result.summary, *absorbed_lines(result), *(one.message for one in warnings_in_words(result.warnings))]
    for finding in result.findings:
        lines += [title(finding, wide=True), *facts(finding, wide=True), *part_lines(finding, wide=True)]
        lines += [*sentences(finding), finding.suggestion]
    return "\n".join(lines)


def table(scored: Sequence[Scored]) -> Iterable[str]:
    """A row per kind, and one of all."""
    columns = ("jobs", "right", "verdict", "ranks", "innocent", "healthy accused", "untold", "extra", "price/truth")
    yield f"{'kind':22} {'  '.join(columns):90}  s/job  verdicts"
    for kind in [*dict.fromkeys(one.kind for one in scored), "all"]:
        own = [one for one in scored if kind in (one.kind, "all")]
        guilty, well = [one for one in own if one.truth.ranks], [one for one in own if one.truth.healthy]
        ratios = sorted(one.ratio for one in own if one.ratio is not None)
        cells = (
            len(own),
            sum(one.right for one in own),
            sum(one.right_verdict for one in own),
            f"{sum(one.accused == one.truth.ranks for one in guilty)}/{len(guilty)}" if guilty else "",
            sum(one.innocents for one in own),
            f"{sum(bool(one.accused) for one in well)}/{len(well)}" if well else "",
            sum(bool(one.untold) for one in own),
            sum(bool(one.extra) for one in own),
            f"{np.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})" if ratios else "",
        )
        row = "  ".join(f"{cell!s:>{len(column)}}" for cell, column in zip(cells, columns, strict=True))
        verdicts = ", ".join(
            f"{count} {verdict}" for verdict, count in Counter(one.verdict for one in own).most_common()
        )
        yield f"{kind:22} {row:90}  {np.mean([one.seconds for one in own]):5.1f}  {verdicts}"


def wrong(scored: Sequence[Scored], keep: Path | None) -> Iterable[str]:
    """Each job that was not answered right (WRONG), or whose answer leaves something untold or tells too much."""
    for one in scored:
        if one.right and not one.untold and not one.extra:
            continue
        truth, where = one.truth, one.name if keep is None else str(keep / one.name)
        yield f"{'WRONG ' if not one.right else 'less  '} {where}: {truth.about}"
        wanted = f"{'/'.join(truth.verdicts)} ranks {list(truth.ranks)} {truth.cause}"
        yield f"       truth: {wanted}, {truth.ms:.2f} of {truth.step_ms:.2f} ms"
        price = "" if one.ratio is None else f", price × {one.ratio:.2f}"
        yield f"       said:  {one.verdict} ranks {list(one.accused)} {'+'.join(one.causes)}{price}: {one.summary}"
        if one.untold:
            yield f"       untold: {'; '.join(one.untold)}"
        if one.extra:
            yield f"       also told, though no such fault is there: {', '.join(one.extra)}"


def _of_fault(finding: Finding) -> bool:
    """Whether a finding is of a fault: every job has transfers that nothing overlaps, and pipelines their stages."""
    return finding.cause not in ("exposed_communication", "stage_imbalance")


def _fits(finding: Finding, truth: Truth) -> bool:
    ranks = () if finding.pattern == "job_wide" else finding.ranks
    names_operator = not truth.operator or re.search(truth.operator, f"{finding.operator} {finding.edge}")
    return (
        set(ranks) <= set(truth.ranks)
        and bool(ranks) == bool(truth.ranks)
        and bool(truth.cause and re.search(truth.cause, finding.cause))
        and bool(names_operator)
    )


def _price_ms(result: TriageResult, fitting: Sequence[Finding]) -> float:
    """Of all that fits at once."""
    if len(fitting) > 1 and result.together is not None:
        return result.together.saved_us / 1e3
    return max(one.time_lost_us_per_step for one in fitting) / 1e3


def _tells_price(ms: float, sentence: str) -> bool:
    """Whether one of the times in it is the price, within a seventh."""
    found = re.findall(r"([\d.]+)(?: of the [\d.]+)? (ms|µs)", sentence)
    return any(abs(float(value) * (1e-3 if unit == "µs" else 1.0) / ms - 1) < 0.15 for value, unit in found)


def _tells_steps(steps: Sequence[int], findings: Sequence[Finding], text: str) -> bool:
    if any(set(one.steps) == set(steps) for one in findings):
        return True
    every = np.diff(steps)
    if len(every) > 1 and len(set(every)) == 1 and re.search(rf"every {every[0]}(st|nd|rd|th)?\b", text):
        return True
    return all(re.search(rf"\b{step}\b", text) for step in steps)


if __name__ == "__main__":
    main()
