"""What is handed over of a finding: its price, its proofs, the part, how to see it oneself, how to drain its hosts."""

from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Word
from kair_engine.results.triage import Verdict
from kair_engine.trace.model import KairWarning


@dataclass(frozen=True)
class Proof:
    """One thing that speaks for the finding."""

    source: Literal["delays", "evidence", "recording"]
    """Delays of the running job (`kair confirm`), telemetry and logs, or the recording itself."""
    sentence: str
    """What it says."""
    command: str | None
    """What shows the same, as a shell has it; null where nothing does."""


@dataclass(frozen=True)
class PartOfTicket:
    """What evidence next to the recording says of one part."""

    part: str
    """Its name, as in the findings' explanations."""
    word: Word
    """How sure that is."""
    sentence: str
    """What is known of it."""
    command: str | None
    """What would observe it, or undo it; null where that is not known."""


@dataclass(frozen=True)
class TimelinePicture:
    """What ranks did around the delay."""

    command: str | None
    """Draws it, as a shell has it; null where the recording has no timeline."""
    file: str | None = None
    """Where it was written, next to the report; null where none was."""
    why_none: str | None = None
    """Why there is no timeline."""


@dataclass(frozen=True)
class DrainCommand:
    """What takes one host out of its scheduler's hands."""

    host: str
    """Which one."""
    command: str
    """As a shell has it."""
    status: int | None = None
    """Its exit status; null where it was not run, or did not end by itself."""
    failed: bool = False
    """Whether it was run and did not do what it should."""
    said: str = ""
    """What it wrote, or why it could not be run."""

    @property
    def outcome(self) -> str:
        """Return what came of it, as it follows the command on a line; empty where it was not run."""
        if self.status is None and not self.failed:
            return ""
        said = f": {self.said}" if self.said else ""
        return f": {'not run to its end' if self.status is None else f'exit status {self.status}'}{said}"


@dataclass(frozen=True)
class Fingerprint:
    """What this was found in, so that somebody else can check whether they look at the same recording."""

    job: str
    """Its name."""
    recording: str
    """Where the recording was read."""
    digest: str
    """Of every step's times on every rank: the same wherever the recording lies."""
    kair: str
    """The version of Kair."""
    ranks: tuple[Rank, ...]
    """That were recorded."""
    world_size: int
    """How many ranks the job has."""
    steps: tuple[int, ...]
    """That were analysed."""
    begin_ns: int | None
    """When the first of the recorded steps began, Unix; null where the recording's clock is its own."""
    end_ns: int | None
    """When the last of them was over."""
    sources: tuple[str, ...]
    """Where evidence next to the recording is from."""


@dataclass(frozen=True, kw_only=True)
class TicketResult:
    """One finding of a triage, ready to be handed over; or the statement that nothing was found."""

    asked: Literal["ticket", "drain"]
    """Whether the ticket is wanted, or the commands that drain alone."""
    title: str
    """Who and why, and what it costs, on one line."""
    verdict: Verdict
    """Of the whole triage."""
    finding: int | None
    """Its number among the findings, from 1; null where there are none."""
    summary: str
    """The whole triage's answer in one sentence."""
    price: tuple[str, ...] = ()
    """What it costs and what a fix saves, when it shows, how sure that is: sentences."""
    proofs: tuple[Proof, ...] = ()
    """The strongest first, three at most."""
    against: tuple[str, ...] = ()
    """What speaks against it: sentences."""
    devices: tuple[str, ...] = ()
    """Of its ranks, as one looks them up."""
    parts: tuple[PartOfTicket, ...] = ()
    """What evidence next to the recording says, the surest first."""
    differences: tuple[str, ...] = ()
    """What its ranks have and others have not, and what changed: sentences that accuse nobody."""
    happenings: tuple[str, ...] = ()
    """Events near its begin: sentences."""
    suggestion: str = ""
    """What to do."""
    others: tuple[str, ...] = ()
    """The other findings, by number and title."""
    timeline: TimelinePicture
    """Where to see it."""
    commands: tuple[str, ...]
    """What shows all of this, as a shell has it."""
    drain: tuple[DrainCommand, ...] = ()
    """What drains its hosts; empty where draining does not help, or nobody knows how."""
    not_drained: str | None = None
    """Why `drain` is empty."""
    drained: bool = False
    """Whether these were run."""
    fingerprint: Fingerprint
    """Of what this was found."""
    warnings: tuple[KairWarning, ...] = ()

    @property
    def exit_status(self) -> int:
        """1 where a command that was run failed."""
        return int(any(one.failed for one in self.drain))
