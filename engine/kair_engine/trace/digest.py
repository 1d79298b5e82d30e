"""Tells recordings apart, and knows one again wherever its files lie."""

from array import array
from hashlib import blake2b

from kair_engine.trace.model import Job


def recording_digest(job: Job) -> str:
    """32 hexadecimal digits of what was recorded: the begin (ns), duration (ns) and number of operations of every step
    on every rank, and how far each rank came in its process groups.

    It is the same for the same traces on another machine, under another name, or in the store; another step, rank or
    run changes it. Of what happens within steps it knows the number of operations alone.
    """
    digest = blake2b(digest_size=16)
    of = job.step_times
    for column in (of.rank, of.step, of.begin_ns, of.duration_ns, of.operations):
        digest.update(array("q", column).tobytes())
    if job.progress:
        digest.update(repr(sorted(job.progress.items())).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
