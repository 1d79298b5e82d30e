"""What evidence says of a finding, as people read it."""

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


def test_a_line_says_what_explains_it_and_how_often_innocent_ranks_show_the_same() -> None:
    assert lines_of(hot())[0] == (
        "explained by rank 1's device's temperature: SM clock 1,365 MHz, 1,755 MHz on its peers, 1,755 MHz before it "
        "began; 100 % of the 8.00 ms that it takes longer; 0 of 120 control samples show the same"
    )


def test_an_event_is_told_with_its_time_its_bound_and_what_it_says() -> None:
    told = next(line for line in lines_of(hot()) if line.startswith("may be"))
    assert told.startswith("may be: errors of rank 1's device's memory: XID 63 at ")
    assert "± 500 ms, 5.00 s before it became slow; Row Remapper: New row marked [31m for remapping" in told
    assert told.endswith("what it costs is not known")


def test_what_nobody_looked_at_comes_with_its_command_where_there_is_room() -> None:
    assert lines_of(Telemetry())[-1].endswith(" more")
    assert "(nvidia-smi -q -d PERFORMANCE,TEMPERATURE on its host)" in lines_of(Telemetry(), wide=True)[-1]


def test_a_counter_of_seconds_is_a_share_of_the_time() -> None:
    stopped = Telemetry(has_device=False, cause="contention")
    stopped.counter("process_throttled_time", lambda rank, _: 0.2 if rank == 1 else 0.0)
    assert "20 %, 0.0 % on its peers" in lines_of(stopped)[0]


def test_what_to_do_names_the_device() -> None:
    found = with_explanations(hot().result(), hot().known()).findings[0].explanations[0]
    assert remedy_of(found) == (
        "Look at the cooling of node-0 GPU 1, GPU-00000001-0000-0000-0000-000000000000, 0000:01:00.0, and drain it "
        "while it is hot."
    )
