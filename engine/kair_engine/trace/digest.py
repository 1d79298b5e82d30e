"""Distinguishes recordings, and recognises one wherever its files lie."""

from array import array
from hashlib import blake2b

from kair_engine.trace.model import Job


def recording_digest(job: Job) -> str:
    """Return 32 hexadecimal digits that identify a recording.

    They derive from begin (ns), duration (ns) and number of operations of every step on every rank, and from each
    rank's progress in its process groups. They are the same for the same traces on another machine, under another name,
    or in the store; another step, rank or run changes them. Within steps only the number of operations counts.
    """
    digest = blake2b(digest_size=16)
    of = job.step_times
    for column in (of.rank, of.step, of.begin_ns, of.duration_ns, of.operations):
        digest.update(array("q", column).tobytes())
    if job.progress:
        digest.update(repr(sorted(job.progress.items())).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
