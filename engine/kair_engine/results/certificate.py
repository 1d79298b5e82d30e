"""What a certificate of a verdict proves, once it was worked out anew."""

from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.triage import Verdict


@dataclass(frozen=True)
class CertifiedFinding:
    """One culprit."""

    cause: Cause
    """Why the time is lost."""
    ranks: tuple[Rank, ...]
    """Who is to blame; empty where nobody is."""
    p_value: float | None
    """Family-wise: corrected for everything tried in this triage."""
    time_lost_us_per_step: float
    """What a step would be shorter by without this culprit alone, with all others as they are."""


@dataclass(frozen=True)
class Certificate:
    """A certificate that holds."""

    says: str
    """What it proves, and what not."""
    verdict: Verdict
    """Whether a rank, host or link is accused, the whole job is slowed, nobody is, or that is open."""
    job: str
    """The job's name."""
    kair: str
    """The version of Kair that wrote it."""
    sha256: str
    """The certificate's digest."""
    files: int
    """So many files of the recording have their digests in it."""
    ranks: int
    """Of the job."""
    steps: int
    """That were analysed."""
    step_time_us: float
    """The mean over steps."""
    sums: int
    """Steps of single ranks whose account adds up to their length."""
    chances: int
    """Ranks whose p-value follows from the chances of their signals."""
    prices: int
    """Findings whose price follows from replayed steps."""
    findings: tuple[CertifiedFinding, ...]
    """Culprits, and what slows the job though nobody is to blame."""
    stated: tuple[str, ...]
    """Fields of the certificate that are stated and do not follow from other figures of it."""
