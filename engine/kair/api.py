"""The Python API: a job that is open, its tables as Polars frames, and the answers of every analysis, typed.

An answer is the record that `kair schema COMMAND` describes; `to_json()` is what the command prints with `--json`.
"""

import html
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from kair.app.question import Answer, Question, Watcher
from kair.app.session import Session
from kair.app.step_choice import parse_steps
from kair.app.stores import OpenStore
from kair.app.tables import TABLES
from kair_engine.errors import UsageError
from kair_engine.ranks import Rank
from kair_engine.results import Method
from kair_engine.results.blame import BlameResult
from kair_engine.results.compare import CompareResult
from kair_engine.results.confirm import ConfirmRun
from kair_engine.results.forecast import ForecastResult
from kair_engine.results.localize import LocalizeResult
from kair_engine.results.mitigate import MitigateResult
from kair_engine.results.money import GpuCost
from kair_engine.results.pinpoint import PinpointResult
from kair_engine.results.rank import RankProfileResult
from kair_engine.results.sensitivity import SensitivityResult
from kair_engine.results.store import FleetResult
from kair_engine.results.triage import TriageResult
from kair_engine.results.views import FrequencyResult, InfoResult
from kair_engine.results.whatif import WhatifResult
from kair_engine.results.windows import WindowsResult

if TYPE_CHECKING:
    import polars as pl
    from networkx import DiGraph

    from kair_tui.render.written import AnyFormat

Steps = int | str | Sequence[int] | None
"""A step, `40-60,70`, `last`, several numbers, or None for all."""
_FRAME: Final = "width:100%;height:36em;border:0"
_TEXT: Final = "white-space:pre;font-family:monospace"


class Written:
    """An answer: the record of its command, which can also be written in that command's formats."""

    _answer: Answer
    _session: Session | None

    @classmethod
    def of(cls, answer: Answer, session: Session | None = None) -> Self:
        """Return a record of this class with the fields of an answer's result."""
        made = object.__new__(cls)
        vars(made).update(vars(answer.result), _answer=answer, _session=session)
        return made

    def to_json(self) -> str:
        """Return the document that the command prints with `--json`."""
        return self.text("json")

    def text(self, form: "AnyFormat" = "table") -> str:
        """Return the answer in a format of the command line: table, wide, csv, ndjson, md, …"""
        from kair_tui.cli.asking import shown
        from kair_tui.cli.registry import find
        from kair_tui.render.answer import PageOptions
        from kair_tui.render.written import written

        entry = find(self._answer.question.command)
        assert entry is not None  # it was answered
        return written(shown(self._answer), entry.load_view(), form, PageOptions(wide=form == "wide"))

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:  # noqa: ANN401
        """Show the text of the command, for IPython in a terminal."""
        printer.text(self.text())

    def _repr_html_(self) -> str:
        """Show the page of the command, for notebooks."""
        return f'<div style="{_TEXT}">{html.escape(self.text())}</div>'


class Triage(Written, TriageResult):
    """The whole investigation: who is slow, why, at what price, and what to do."""

    def report(self) -> str:
        """Return the report as one HTML page, as `kair triage --report incident.html` writes it."""
        from kair_tui.cli.asking import Asker
        from kair_tui.commands.triage_report import report_of
        from kair_tui.render.report.templates import html as page

        assert self._session is not None
        question = self._answer.question
        asker = Asker(self._session, question.steps, question.baseline)
        return page(report_of(asker, self, question.argument("gpu_cost")))

    def certificate(self) -> bytes:
        """Return the certificate of the verdict, as `kair triage --certificate` writes it; `kair verify` checks it."""
        from kair_tui.commands.verify import certificate_of

        assert self._session is not None
        return certificate_of(self._session, self._answer)

    def _repr_html_(self) -> str:
        """Show the report, apart from the notebook's own styles."""
        return f'<iframe style="{_FRAME}" sandbox srcdoc="{html.escape(self.report())}"></iframe>'


class Blame(Written, BlameResult):
    """The paths that lead from waiting to its root causes."""

    @property
    def graph(self) -> "DiGraph":
        """The graph of `kair blame -o graphml`: who waits for whom, and what made them late."""
        from kair.app.waiting_graph import waiting_graph

        return waiting_graph(self)


class Localize(Written, LocalizeResult):
    """A score for every rank."""


class Pinpoint(Written, PinpointResult):
    """One rank's outlying operators."""


class Whatif(Written, WhatifResult):
    """How fast the job would be without its stragglers, and what each part costs."""


class Mitigation(Written, MitigateResult):
    """What each mitigation policy would save the job."""


class RankProfile(Written, RankProfileResult):
    """Where one rank's step time goes."""


class Frequency(Written, FrequencyResult):
    """How often operations begin in each window of a step."""


class Sensitivity(Written, SensitivityResult):
    """The smallest faults that the recording can show."""


class Forecast(Written, ForecastResult):
    """What ordinary noise would cost on more ranks."""


class Confirmed(Written, ConfirmRun):
    """What delays of the running job proved."""


class Info(Written, InfoResult):
    """What the recording holds."""


class Comparison(Written, CompareResult):
    """What changed between two runs."""


class Fleet(Written, FleetResult):
    """How often stragglers occur in the jobs of a store, and what they cost."""


Record = TypeVar("Record", bound=Written)


class Job:
    """An open job. Its tables are Polars frames, and its methods are the analyses of the command line.

    The same question is computed once. Nothing is written; only `kair import` and `kair triage` keep anything.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __repr__(self) -> str:
        """Name the job, its ranks and steps."""
        job = self._session.trace.job
        return f"<kair.Job {job.name}: {len(job.ranks)} ranks, {len(job.steps)} steps>"

    def _repr_html_(self) -> str:
        """Show what `kair info` shows of the job, for notebooks."""
        return self.info()._repr_html_()

    @property
    def name(self) -> str:
        """The job's name."""
        return self._session.name

    @property
    def operations(self) -> "pl.LazyFrame":
        """Every operation, one per row; lazy, because they may exceed the memory: `.collect()` reads them."""
        return self._table("operations")

    @property
    def steps(self) -> "pl.DataFrame":
        """Every step on every rank: one row for each step and rank."""
        return self._table("steps").collect()

    @property
    def ranks(self) -> "pl.DataFrame":
        """Every rank, one per row: where it runs, and how long its steps took."""
        return self._table("ranks").collect()

    @property
    def collectives(self) -> "pl.DataFrame":
        """Every matched collective, one row for each rank in it, with its transfer and its waiting."""
        return self._table("collectives").collect()

    @property
    def account(self) -> "pl.DataFrame":
        """Where each step's time went on each rank; the rows of one step and rank add up to the step."""
        return self._table("account").collect()

    @property
    def findings(self) -> "pl.DataFrame":
        """The findings of triage, one row for each finding and rank."""
        return self._table("findings").collect()

    def query(self, sql: str) -> "pl.DataFrame":
        """Return all rows of an SQL query over these tables (`kair query`). Raises UsageError for invalid SQL."""
        from kair.app.querying import select

        return select(sql, self._session.trace, self._findings).whole.collect(engine="streaming")

    def ask(self, command: str, step: Steps = None, *, baseline: str | None = None, **arguments: Any) -> Any:  # noqa: ANN401
        """Answer any question and return its record; the arguments are the command's options by their long names.

        Raises KairError if it cannot be answered.
        """
        return self._asked(command, step, baseline, **arguments).result

    def triage(
        self,
        step: Steps = None,
        *,
        gpu_cost: float | str | None = None,
        baseline: str | None = None,
        evidence: Sequence[str | Path] = (),
    ) -> Triage:
        """Find the straggler: who, in which operator, why, what it costs, what to do.

        `gpu_cost` is the price of a GPU hour: 2.5, or "2.5USD". `baseline` names a saved baseline; "none" means no
        baseline, None the one in use.
        Raises InputError if a named piece of evidence cannot be read.
        """
        named = tuple(map(str, evidence))
        return self._made(Triage, "triage", step, baseline=baseline, gpu_cost=_price(gpu_cost), evidence=named)

    def localize(
        self,
        step: Steps = None,
        *,
        method: Method = "robust",
        baseline: str | None = None,
        **more: Any,  # noqa: ANN401
    ) -> Localize:
        """Score every rank by how much slower it is than its peers."""
        return self._made(Localize, "localize", step, baseline=baseline, method=method, **more)

    def pinpoint(self, rank: Rank, step: Steps = None, *, method: Method = "robust", limit: int = 50) -> Pinpoint:
        """Find one rank's outlying operators. Raises UsageError for a rank that left no trace."""
        return self._made(Pinpoint, "pinpoint", step, rank=rank, method=method, limit=limit)

    def blame(self, step: Steps = None, *, rank: Rank | None = None, **more: Any) -> Blame:  # noqa: ANN401
        """Trace waiting back to its root causes; `.graph` is a networkx graph."""
        return self._made(Blame, "blame", step, rank=rank, **more)

    def whatif(
        self,
        step: Steps = None,
        *,
        fix: Sequence[str] = (),
        scale: Sequence[str] = (),
        remedy: Sequence[str] = (),
        gpu_cost: float | str | None = None,
    ) -> Whatif:
        """Replay the job without its stragglers, and price fixes such as `rank=16` or `kind=input`."""
        asked = {"fix": tuple(fix), "scale": tuple(scale), "remedy": tuple(remedy)}
        return self._made(Whatif, "whatif", step, **asked, gpu_cost=_price(gpu_cost))

    def mitigation(
        self,
        step: Steps = None,
        *,
        policy: Sequence[str] = (),
        sizes: Sequence[int] = (),
        most: int | None = None,
        fixed_share: float | None = None,
    ) -> Mitigation:
        """Replay mitigation policies on the recorded steps, as `kair mitigate simulate JOB` does.

        `sizes` are each rank's samples per step, `most` is the most that a rank has memory for. Raises
        UsageError for an unknown policy.
        """
        asked = {"policy": tuple(policy), "sizes": tuple(sizes), "most": most, "fixed_share": fixed_share}
        return self._made(Mitigation, "mitigate", step, **asked)

    def windows(self) -> WindowsResult:
        """Price each window of sampled steps: S, M_W and S_w over time, as `kair watch --whatif` shows them."""
        found: WindowsResult = self.ask("windows")
        return found

    def rank(self, rank: Rank, step: Steps = None) -> RankProfile:
        """Show where one rank's step time goes. Raises UsageError for a rank that left no trace."""
        return self._made(RankProfile, "rank", step, rank=rank)

    def frequency(self, step: Steps = None, **options: Any) -> Frequency:  # noqa: ANN401
        """Count how often operations begin in each window of a step."""
        return self._made(Frequency, "frequency", step, **options)

    def sensitivity(self, **options: Any) -> Sensitivity:  # noqa: ANN401
        """Find the smallest faults that the recording can show."""
        return self._made(Sensitivity, "sensitivity", None, **options)

    def forecast(self, ranks: Sequence[int] = (8, 64, 1024), **options: Any) -> Forecast:  # noqa: ANN401
        """Estimate what ordinary noise would cost on more ranks."""
        return self._made(Forecast, "forecast", None, ranks=",".join(map(str, ranks)), **options)

    def confirmed(self) -> Confirmed:
        """Show what delaying the running job has proved so far. Raises InputError if no rank was delayed."""
        return self._made(Confirmed, "confirm", None)

    def info(self) -> Info:
        """Show what the recording holds."""
        return self._made(Info, "info", None)

    def _made(self, record: type[Record], command: str, step: Steps, **asked: Any) -> Record:  # noqa: ANN401
        return record.of(self._asked(command, step, asked.pop("baseline", None), **asked), self._session)

    def _asked(self, command: str, step: Steps, baseline: str | None, **arguments: Any) -> Answer:  # noqa: ANN401
        question = Question.of(command, _chosen(step, self._session), **arguments)
        return self._session.ask(replace(question, baseline=baseline))

    def _table(self, name: str) -> "pl.LazyFrame":
        from kair.app.step_history import require_sampled  # loads numpy, which `import kair` does without

        require_sampled(self._session.trace, f"the table {name}")
        return TABLES[name].frame(self._session.trace, self._findings)

    def _findings(self) -> Any:  # noqa: ANN401
        return self.triage().findings


def open(  # noqa: A001  (as httpx.get or polars.read_csv: it is meant to be called as kair.open)
    job: str | Path | None = None, *, store: str | Path | None = None, progress: Watcher | bool = True
) -> Job:
    """Open a folder of traces, a trace file, or a job of the store; None for the job in use.

    `progress=True` shows the progress of long reading, in notebooks too; a function is called with (done, total, what).
    Raises InputError if there is no such job, or it is unreadable.
    """
    from kair_tui.cli.asking import open_session

    place = None if store is None else Path(store)
    with _watched(progress) as watch:
        return Job(open_session(job, store=place, progress=watch))


def compare(
    base: str | Path,
    new: str | Path,
    *,
    base_step: str = "all",
    step: str = "all",
    store: str | Path | None = None,
    progress: Watcher | bool = True,
) -> Comparison:
    """Find what changed between two runs, each a path or a job of the store. Raises InputError for anything else."""
    with _store(store, progress) as opened:
        question = Question.of("compare", base=str(base), new=str(new), base_step=base_step, step=step)
        return Comparison.of(opened.ask(question))


def fleet(
    *, gpu_cost: float | str | None = None, store: str | Path | None = None, progress: Watcher | bool = True
) -> Fleet:
    """Summarise all jobs of the store; jobs that `kair fleet` has not priced yet are priced first.

    `gpu_cost` is the price of a GPU hour: 2.5, or "2.5USD". Raises InputError if the store has no job.
    """
    from kair.app.acts.jobs import price_jobs

    with _store(store, progress) as opened:
        priced = price_jobs(opened, keep=False)
        return Fleet.of(opened.ask(Question.of("fleet", priced=priced, gpu_cost=_price(gpu_cost))))


@contextmanager
def _store(store: str | Path | None, progress: Watcher | bool) -> Iterator[OpenStore]:
    from kair.app.places import store_root

    with _watched(progress) as watch:
        yield OpenStore(store_root(None if store is None else Path(store)), watch)


def _price(gpu_cost: float | str | None) -> GpuCost | None:
    return None if gpu_cost is None else GpuCost.of(gpu_cost)


def _chosen(step: Steps, session: Session) -> tuple[int, ...] | None:
    """Return the chosen steps. Raises UsageError for an invalid choice."""
    if step is None:
        return None
    if isinstance(step, str):
        return session.chosen(parse_steps(step))
    chosen = (step,) if isinstance(step, int) else tuple(step)
    if not chosen:
        raise UsageError("no step is chosen", "None stands for all steps")
    return chosen


@contextmanager
def _watched(progress: Watcher | bool) -> Iterator[Watcher]:
    from kair_tui.cli.output import ProgressBar

    if callable(progress):
        yield progress
        return
    with ProgressBar(quiet=not progress, ascii_only=False) as bar:
        yield bar
