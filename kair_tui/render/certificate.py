"""A certificate that holds, in words: what it proves, what was computed, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kair_engine.results.certificate import Certificate, CertifiedFinding
from kair_tui.render.answer import Column
from kair_tui.render.units import count, duration, mean_step, p_value, plural, ranks_in_words
from kair_tui.render.verdict import cause_in_words, verdict_in_words
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

_COLUMNS = (
    Column[CertifiedFinding]("cause", "cause", lambda row: cause_in_words(row.cause), align="left"),
    Column[CertifiedFinding](
        "ranks", "ranks", lambda row: ranks_in_words(row.ranks) if row.ranks else "all", align="left"
    ),
    Column[CertifiedFinding]("p_value", "p", lambda row: p_value(row.p_value)),
    Column[CertifiedFinding]("time_lost_us_per_step", "lost/step", lambda row: duration(row.time_lost_us_per_step)),
)


def _body(result: Certificate, page: Page) -> None:
    page.line(
        f"verdict: {verdict_in_words(result.verdict)} ({result.job}, {mean_step(result.step_time_us, result.steps)})"
    )
    if result.findings:
        page.table(_COLUMNS, result.findings)
    page.line(
        f"holds: the account of {plural(result.sums, 'step of a rank', 'steps of ranks')} "
        f"({plural(result.ranks, 'rank')}, {plural(result.steps, 'step')}), "
        f"{plural(result.chances, 'chance')}, {plural(result.prices, 'price')}, the verdict"
    )
    if result.stated:
        page.line(f"only stated ({count(len(result.stated))}): {', '.join(result.stated)}")
    page.line(f"digests of {plural(result.files, 'file')}; by kair {result.kair}; sha256 {result.sha256}")


VIEW = View[Certificate, CertifiedFinding](
    main="findings",
    columns=_COLUMNS,
    headline=lambda result: result.says,
    body=_body,
    records=(("findings", "finding"),),
)
