"""What evidence next to traces says of a finding: which part explains it, what differs, what changed and when."""

from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.trace.measures import EvidenceSource
from kair_engine.trace.model import KairWarning

Word = Literal["explains", "consistent", "seen", "excluded", "not_tied", "not_observed"]
"""`explains`: differs from peers, its size and its time fit, and healthy ranks do not show it by chance;
`consistent`: differs from peers, and nothing speaks against it; `seen`: also on peers, so it is nobody's;
`excluded`: well sampled, and absent; `not_tied`: a source shows it, of devices that could not be tied to the rank;
`not_observed`: no source shows it."""
JoinedBy = Literal["uuid", "pci", "process", "rank", "scheduler", "host", "ordinal", "local_rank"]
"""What ties evidence to a rank, in order of trust. `ordinal` (the driver numbers the device as the rank's process does)
and `local_rank` are assumptions, and explain nothing."""


@dataclass(frozen=True)
class Explanation:
    """What evidence says of one part that could make a finding's rank slow."""

    part: str
    """A row of PARTS (evidence/parts.py): `thermal`, `power_cap`, `cpu_quota`, `other_process`."""
    word: Word
    """explains: differs from peers, and its size and time fit; consistent: differs, and nothing speaks against it;
    seen: peers have it too; excluded: well sampled, and absent; not_tied: a source reports it, for devices that could
    not be tied to the rank; not_observed: not measured.
    """
    rank: Rank
    """Of the finding's, whom it is about."""
    entity: str | None = None
    """`gpu:GPU-5f3e…`, `nic:mlx5_3/1`, `pid:4711`, `host`: what was looked at; null where nothing was."""
    device: str | None = None
    """The rank's device in words, where the part is of it: `node-7 GPU 3, GPU-5f3e…, 0000:1b:00.0`."""
    measure: str | None = None
    """The measure that shows it, by its name in the table of evidence; null where none does."""
    own: float | None = None
    """That measure on the rank, in its unit (a counter: per second), while the finding shows."""
    peers: float | None = None
    """The same of the other ranks of its role, their median."""
    before: float | None = None
    """The same on the rank before the finding began; null where it showed from the first step."""
    unit: str = ""
    """Of own, peers and before; empty where they are numbers or texts."""
    predicted_us: float | None = None
    """So much longer a step has to be by this; null where that cannot be said."""
    measured_us: float | None = None
    """So much longer the rank's own time in a step is, as the finding says."""
    text: str | None = None
    """What a state or an event says."""
    at_ns: int | None = None
    """When it began or happened, Unix; null where it always was."""
    bound_ns: int | None = None
    """By how much that may be off."""
    since_ns: int | None = None
    """When the finding began, Unix; null where it showed from the first step."""
    fired: int = 0
    """Control samples: healthy ranks and windows of this recording for which the same rule holds."""
    tried: int = 0
    """Of so many."""
    p_value: float | None = None
    """(fired + 1) / (tried + 1); null below 20 of them."""
    joined_by: JoinedBy | None = None
    """What ties the evidence to the rank, in order of trust; null where nothing was looked at."""
    sources: tuple[str, ...] = ()
    """Names of the sources that report it."""
    proofs: tuple[str, ...] = ()
    """`file:line` of what says it, where one can look it up."""
    command: str | None = None
    """What would observe it, or undo it; null where that is not known."""


@dataclass(frozen=True)
class Difference:
    """Something that one rank or host has and the others have not, or that changed. It accuses nobody."""

    what: str
    """`environment NCCL_ALGO`, `versions driver`, `settings governor`, `device model`."""
    ranks: tuple[Rank, ...]
    """Who has it."""
    hosts: tuple[str, ...]
    """Where these run."""
    value: str
    """What they have; `(unset)` where it is missing."""
    usual: str
    """What the others have, or what there was before."""
    others: int
    """How many ranks have the usual; against an attempt, how many have what they had."""
    against: Literal["peers", "attempt", "job"]
    """The other ranks; the attempt before; another job or a kept baseline."""
    of: str | None = None
    """The attempt's number or the other job's name."""
    accused: bool = False
    """Whether a rank that the verdict accuses has it."""


@dataclass(frozen=True)
class Happening:
    """An event or a change near the begin of a finding."""

    at_ns: int
    """Unix."""
    bound_ns: int
    """By how much that may be off."""
    name: str
    """Of the measure: `xid`, `link_down`, `oom_kill`."""
    value: float | None
    """The number that it comes with, as of an XID; null where it has none."""
    text: str | None
    """A sentence for people."""
    entity: str
    """What it happened to: `gpu:GPU-5f3e…`, `nic:mlx5_3/1`, `host`."""
    host: str | None
    """Where it runs; null where that is not recorded."""
    ranks: tuple[Rank, ...]
    """Whom it is of, as far as that is known."""
    on_accused: bool
    """Whether it is of a rank that the verdict accuses."""
    on_others: int
    """How many other ranks have the same within the same time."""
    before_s: float
    """So long before the finding began; negative: after."""
    order_known: bool
    """Whether the clocks are good enough to say which came first."""
    finding: int = 0
    """The number of the finding, from 1."""
    raw: str | None = None
    """`file:line`."""
    others_observed: int = 0
    """Of how many other ranks a source would have shown it: without them silence on others says nothing."""


@dataclass(frozen=True)
class AddedEvidence:
    """A file of evidence that is kept with a job."""

    source: str
    """The file that was named, or found in a folder."""
    file: str
    """What it is kept as, in the folder `evidence/added` of the job."""
    kinds: tuple[str, ...]
    """What it is: `kernel log`, `dcgm`."""
    rows: int
    """That were read of it."""
    was_there: bool
    """Whether it was kept before: then nothing changed."""


@dataclass(frozen=True)
class EvidenceResult:
    """What evidence there is next to a job."""

    name: str
    """The job's."""
    action: Literal["list", "add"]
    """What was asked."""
    sources: tuple[EvidenceSource, ...]
    """Where it is from."""
    warnings: tuple[KairWarning, ...]
    added: tuple[AddedEvidence, ...] = ()
    """What was named to be kept, of `add`."""
    first_ns: int | None = None
    """When the job's first recorded step began, Unix; null where the recording does not say what time it was."""
    last_ns: int | None = None
    """When the last of them was over."""
    outside: tuple[str, ...] = ()
    """Names of sources that have nothing of that time."""
