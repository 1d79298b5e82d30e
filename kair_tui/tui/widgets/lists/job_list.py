"""The store's jobs as a list: each with its last verdict, and where it comes from."""

from collections.abc import Sequence

from kair_engine.results.runs.store import ListedJob
from kair_tui.render.terminal import Look
from kair_tui.render.text import clean
from kair_tui.render.units import plural
from kair_tui.render.views.store.jobs import minute
from kair_tui.render.words.costs import cause_text, hours_text, money_text, share_text, slowdown_text
from kair_tui.tui.widgets.lists.select_list import Choices, Lines
from kair_tui.tui.widgets.styles import styles_of, verdict_style

_WIDEST_NAME = 40
_INDENT = "     "


class JobList(Choices[ListedJob]):
    """Two lines for each job."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, self._lines_of, id="jobs")
        self._name_width = 0

    def show(self, items: Sequence[ListedJob]) -> None:
        """Replaces the jobs; their verdicts stand under each other."""
        self._name_width = min(max((len(job.name) for job in items), default=0), _WIDEST_NAME) + 2
        super().show(items)

    def _lines_of(self, job: ListedJob, width: int) -> Lines:  # noqa: ARG002
        styles, glyphs = styles_of(self.look), self.look.glyphs
        sign = {"straggler": glyphs.alarm, "job_wide": glyphs.weak_alarm}.get(job.last_verdict or "", " ")
        style = styles.dim if job.last_verdict is None else verdict_style(job.last_verdict, self.look)
        verdict = job.last_summary or "not triaged yet"
        ranks = plural(job.ranks, "rank") if job.ranks == job.world_size else f"{job.ranks}/{job.world_size} ranks"
        about = [
            self._cost(job),
            "in use" if job.in_use else "",
            ranks,
            plural(job.steps, "step"),
            f"imported {minute(job.imported_at)} UTC",
            job.source,
        ]
        name = f"{self._safe(job.name):<{self._name_width}} "
        return [
            [
                (f" {sign} ", style),
                (name, styles.strong),
                (self._safe(verdict), style if sign != " " or job.last_verdict is None else styles.base),
            ],
            [(_INDENT, styles.dim), (self._safe(f" {glyphs.dot} ".join(part for part in about if part)), styles.dim)],
        ]

    def _cost(self, job: ListedJob) -> str:
        """S, waste, GPU-hours and their price, as `kair jobs` has them in columns; they stand under each other."""
        if job.slowdown is None:
            return ""
        price = "" if job.cost_per_day is None else f", {money_text(job.cost_per_day)}"
        hours = f"{hours_text(job.gpu_hours_per_day):>8} GPU-hours{price} a day"
        cause = "" if job.cause is None else f": {cause_text(job.cause)}"
        return f"S {slowdown_text(job.slowdown)}, {share_text(job.waste):>6} waste,{hours}{cause}"

    def _safe(self, text: str) -> str:
        return clean(text, ascii_only=self.look.ascii_only)
