"""Finds who the ranks of a job are, from the job's folder and the recordings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kair.app.places import is_mirror
from kair_engine.frozen import dataclass
from kair_engine.trace.identity import RankIdentity, merged
from kair_engine.trace.measures import EvidenceSource
from kair_engine.trace.model import Job

_MOST_FILES: Final = 1 << 17
_SCHEDULERS: Final[Mapping[str, str]] = {"job": "slurm", "pod": "kubernetes"}
"""What a rank is part of, as `RankIdentity.scheduled` begins → the scheduler that calls it so."""


@dataclass(frozen=True)
class Scheduling:
    """Names a job's schedulers, as its recording and the evidence next to it show them."""

    schedulers: frozenset[str]
    """`slurm`, `kubernetes`; empty where nothing shows one."""
    pods: frozenset[str]
    """The names of its ranks' pods: such a rank's host is called so unless its node's name is recorded."""

    def knowing(self, host: str) -> frozenset[str]:
        """Return the schedulers that know the host by this name; Kubernetes drains nodes, not pods."""
        return self.schedulers - {"kubernetes"} if host in self.pods else self.schedulers


def scheduling_of(job: Job, sources: Sequence[EvidenceSource]) -> Scheduling:
    """Return the schedulers that ranks recorded, and those whose evidence is about the job's hosts.

    Raises InputError if the job's store is behind a URL that does not answer.
    """
    names = [name.partition(":") for one in identities_of(job).values() for name in one.scheduled]
    recorded = {_SCHEDULERS[kind] for kind, _, _ in names if kind in _SCHEDULERS}
    hosts = {host.lower() for host in job.hosts.values()}
    known = {one.kind for one in sources if one.kind in _SCHEDULERS.values() and hosts & {*map(str.lower, one.hosts)}}
    pods = {name.rpartition("/")[2] for kind, _, name in names if kind == "pod"}
    return Scheduling(frozenset(recorded | known), frozenset(pods))


def identities_of(job: Job) -> dict[int, RankIdentity]:
    """Return rank → identity: its last captured process, completed by the recordings if they mean the same one.

    Damaged files are skipped. Raises InputError if the job's store is behind a URL that does not answer.
    """
    found = dict(job.identity)
    for one in all_identities_of(job):  # the last process comes last
        recorded = job.identity.get(one.rank)
        found[one.rank] = merged(one, recorded) if recorded is not None and may_be_same(one, recorded) else one
    return dict(sorted(found.items()))


def all_identities_of(job: Job) -> list[RankIdentity]:
    """Return the identities of all captured processes by rank; several attempts of a rank in order of time.

    Damaged files are skipped. Raises InputError if the job's store is behind a URL that does not answer.
    """
    files = _files(job)
    if not files:
        return []
    from kair_engine.trace.files import read_kept
    from kair_engine.trace.identity_file import LARGEST, identity_in

    found = []
    for file in files:
        try:
            one = identity_in(read_kept(file, LARGEST + 1))
        except OSError:
            continue
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda one: (one.rank, one.process_s or 0))


def may_be_same(one: RankIdentity, other: RankIdentity) -> bool:
    """Return whether two identities may be of one process: no field that both have differs."""
    told = (
        (one.host, other.host),
        (one.pid, other.pid),
        (one.device.uuid, other.device.uuid),
        (one.device.pci, other.device.pci),
    )
    return all(mine is None or theirs is None or mine == theirs for mine, theirs in told)


def _files(job: Job) -> list[Path]:
    if job.stored_in is None:
        return []
    folder = Path(job.stored_in).parent
    if is_mirror(folder.parent):
        from kair_engine.store.remote import fetch_evidence

        fetch_evidence(folder.parent, folder.name)
    evidence = folder / "evidence"
    return sorted(evidence.rglob("identity*.json"))[:_MOST_FILES] if evidence.is_dir() else []
