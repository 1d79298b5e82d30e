"""Text of the mitigation screen around its tables: the data's progress, or how to begin."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from kair_engine.results.mitigate import MitigateResult, MitigationProposal
from kair_tui.render.mitigate import VIEW, evidence, shares_text
from kair_tui.render.terminal import Look
from kair_tui.render.units import count
from kair_tui.tui.widgets.lines import Paragraph
from kair_tui.tui.widgets.shares import Share
from kair_tui.tui.widgets.styles import styles_of

_SHOWN: Final = 8
_HOW_TO_BEGIN: Final = (
    "Under it, ranks that are slow can be given smaller batches, and every sample is still trained once an epoch. The"
    " script takes its batches from kair_mitigate.loader(dataset, batch_size=…), and is run with",
    "    kair mitigate run --job JOB -- torchrun --nproc-per-node 8 train.py",
    "    kair mitigate control JOB",
    "on every host, and next to it the controller that proposes sizes. Approve them here.",
)


def standing(result: MitigateResult, look: Look) -> list[Paragraph]:
    """Return the job's state, and ordered plans that are not in force yet."""
    coming = (
        f"{'restart after' if plan.kind == 'leave' else 'from'} step {count(plan.from_step)}: {shares_text(plan)}"
        for plan in result.coming
    )
    bullet = f"{look.glyphs.bullet} "
    return [
        Paragraph(VIEW.headline(result), "strong"),
        *(Paragraph(line, "notice", bullet) for line in coming),
    ]


def shares(result: MitigateResult, look: Look) -> tuple[list[Share], list[Share]]:
    """Return the done, current and remaining parts of the epoch's samples and shards.

    Unknown ones are empty.
    """
    styles, glyphs = styles_of(look), look.glyphs
    done = partial(Share, sign=glyphs.full, style=styles.levels[1], what="done")
    doing = partial(Share, sign=glyphs.levels[2], style=styles.levels[2])
    to_do = partial(Share, sign=glyphs.empty, style=styles.dim, what="to do")
    samples: list[Share] = []
    if result.samples is not None and result.done is not None:
        fetched = result.doing or 0
        left = max(result.samples - result.done - fetched, 0)
        samples = [done(result.done), doing(fetched, what="fetched"), to_do(left)]
    shards: list[Share] = []
    if (of := result.shards) is not None:
        shards = [done(of.done), doing(of.doing, what="in hand"), to_do(of.todo)]
        shards.append(Share(of.quarantined, glyphs.weak_alarm, styles.alarm, "quarantined"))
    return samples, shards


def how_to_begin(job: str | None, jobs: Sequence[str]) -> list[Paragraph]:
    """Return how to begin, for a job that is not under kair mitigate; `jobs` of the store are."""
    first = f"job {job} is not run" if job else "no job of the store is run"
    lines = [Paragraph(f"{first} under kair mitigate", "strong")]
    lines += [Paragraph(line.replace("JOB", job or "JOB")) for line in _HOW_TO_BEGIN]
    if others := [one for one in jobs if one != job]:
        shown = ", ".join(others[:_SHOWN]) + (" …" if len(others) > _SHOWN else "")
        lines.append(Paragraph(f"Run under it in this store: {shown}. Here ] and [ lead there."))
    return lines


def evidence_lines(proposal: MitigationProposal | None) -> list[Paragraph]:
    """Return the evidence of the proposal."""
    if proposal is None:
        return []
    return [Paragraph(f"{proposal.number}: {evidence(proposal) or 'no figures'}", "base", "  ")]
