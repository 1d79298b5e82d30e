"""Writes the certificate of a verdict, and checks one."""

from pathlib import Path
from typing import TYPE_CHECKING

from kair.app.question import Answer
from kair_engine.certificate.verify import MOST_BYTES, SAYS, Refused, check
from kair_engine.errors import InputError
from kair_engine.results.certificate import Certificate, CertifiedFinding

if TYPE_CHECKING:
    from kair.app.session import Session


def certificate(session: "Session", answer: Answer, rules: dict[str, str]) -> bytes:
    """Return the certificate of a triage. Raises UsageError without recorded times, InputError without files."""
    from kair_engine.certificate.making import certificate as made

    trace, cost = session.narrowed(answer.question.steps), answer.question.argument("gpu_cost")
    try:
        return made(trace, answer.result, _files_of(session), rules, cost)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None


def _files_of(session: "Session") -> list[Path]:
    """Return the files that the job was read from; of a job of the store those that it is kept in."""
    from kair_engine.recording.job_file import JOB_FILE
    from kair_engine.recording.opening import find_files

    if session.source.stored:
        return [session.source.path / JOB_FILE, *session.trace.fragments]
    return [file for path in session.source.paths for file in find_files(path).files]


def checked(path: Path) -> Certificate:
    """Return what a certificate proves. Raises InputError if it is unreadable, or a statement does not follow."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        document = check(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except Refused as error:
        raise InputError(f"{path} is refused: {error}") from None
    recorded, derived = document["recorded"], document["derived"]
    account = recorded["account"]
    return Certificate(
        says=SAYS,
        verdict=derived["verdict"],
        job=str(recorded["job"]),
        kair=str(document["rules"]["kair"]),
        sha256=document["sha256"],
        files=len(document["inputs"]),
        ranks=len(recorded["ranks"]),
        steps=len(recorded["steps"]),
        step_time_us=derived["step_time_us"],
        sums=len(account["steps"]) * len(recorded["ranks"]),
        chances=sum(one["stated"] is None for one in recorded["looks"]),
        prices=sum(one["price"] == "replay" for one in recorded["findings"]),
        findings=tuple(
            CertifiedFinding(
                cause=one["cause"],
                ranks=tuple(one["ranks"]),
                p_value=found["p_value"],
                time_lost_us_per_step=found["time_lost_us_per_step"],
            )
            for one, found in zip(recorded["findings"], derived["findings"], strict=True)
        ),
        stated=tuple(derived["stated"]),
    )
