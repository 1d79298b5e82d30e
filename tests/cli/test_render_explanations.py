"""What evidence says of a finding, as people read it."""

from support.kept_cases import assert_kept
from support.telemetry_builder import Telemetry

from kair_engine.evidence.deciding import with_explanations
from kair_tui.render.explanations import explanation_lines, remedy_of


def lines_of(telemetry: Telemetry, *, wide: bool = False) -> list[str]:
    found = with_explanations(telemetry.result(), telemetry.known())
    return explanation_lines(found.findings[0].explanations, wide=wide)


def hot() -> Telemetry:
    told = Telemetry(onset_s=60).gauge("gpu_sm_clock", lambda rank, at: 1365 if rank == 1 and at >= 60 else 1755)
    told.gauge("gpu_throttle_reasons", lambda rank, at: 0x20 if rank == 1 and at >= 60 else 0x4)
    return told.event("xid", 1, 55.0, 63.0, "Row Remapper: New row marked \x1b[31m for remapping")


def test_evidence_is_told_in_lines_and_what_to_do_names_the_device() -> None:
    stopped = Telemetry(has_device=False, cause="contention")
    stopped.counter("process_throttled_time", lambda rank, _: 0.2 if rank == 1 else 0.0)
    hottest = with_explanations(hot().result(), hot().known()).findings[0].explanations[0]
    said = {
        "a device that is hot": lines_of(hot()),
        "what nobody looked at": lines_of(Telemetry())[-1:],
        "with its command where there is room": lines_of(Telemetry(), wide=True)[-1:],
        "a counter of seconds": lines_of(stopped)[:1],
        "what to do": remedy_of(hottest),
    }
    assert_kept("explanations", said)
