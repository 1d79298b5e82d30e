"""`kair mitigate audit`: checks that every sample was trained once in each epoch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kair_engine.errors import InputError
from kair_engine.results.mitigate import AuditedRange, MitigateResult, MitigationAudit, WorkerSamples

if TYPE_CHECKING:
    from kair_mitigate.audit import Audit


def audited(folder: Path, result: MitigateResult, epochs: int | None) -> MitigationAudit:
    """Return which samples were trained twice or never, in the first `epochs` epochs.

    Default: all finished epochs. Raises InputError if the job has not said how many samples it has."""
    from kair_mitigate.audit import audit

    if result.shards is not None:
        return audited_shards(folder, epochs)
    if result.samples is None or result.epoch is None:
        raise InputError("the job has not said yet how many samples it has")
    whole = epochs if epochs is not None else result.epoch
    found = audit(sorted((folder / "trained").glob("*.jsonl")), result.samples, whole)
    return _audit_result(result.samples, whole, {None: found})


def audited_shards(folder: Path, epochs: int | None) -> MitigationAudit:
    """Return which samples were trained twice or never, of data that is given out in shards. Raises InputError."""
    from kair_mitigate.shards.looking import audit_of_run

    try:
        found = audit_of_run(folder, epochs)
    except OSError as error:
        raise InputError(str(error)) from error
    samples = found.dataset.samples
    whole = _audit_result(sum(found.dataset.records.values()) if samples is None else samples, found.epochs, found.of)
    return replace(whole, workers=tuple(WorkerSamples(*one) for one in found.workers.items()))


def _audit_result(samples: int, epochs: int, of: "Mapping[str | None, Audit]") -> MitigationAudit:
    def ranges(what: Literal["missing", "twice"]) -> tuple[AuditedRange, ...]:
        return tuple(
            AuditedRange(epoch, begin, end, file)
            for file, found in of.items()
            for epoch, some in sorted(getattr(found, what).items())
            for begin, end in some
        )

    counted = sum(found.counted for found in of.values())
    return MitigationAudit(samples, epochs, counted, ranges("missing"), ranges("twice"))
