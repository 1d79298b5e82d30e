"""Evidence beside a finding: what explains it, what is also on peers, what is excluded, what nobody looked at."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.telemetry_builder import BEGIN_NS, STEP_US, Telemetry, uuid

from kair_engine.evidence.contrasts import _extremes, peers_of
from kair_engine.evidence.deciding import with_explanations
from kair_engine.evidence.joining import Joins
from kair_engine.evidence.parts import PARTS
from kair_engine.evidence.series import Series
from kair_engine.results.evidence import Explanation
from kair_engine.trace.evidence_table import together
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.measures import MEASURES, EvidenceSource
from kair_tui.render.explanations import explanation_in_words

SLOW, USUAL = 1365.0, 1755.0  # MHz: 28 ms of compute take 8 ms longer
NS = 1_000_000_000
SIZE = 0.2  # of each second: 8 of 40 ms


def told(telemetry: Telemetry, known: Callable[..., object] | None = None) -> dict[str, Explanation]:
    of = telemetry.known()
    if known is not None:
        of = known(of)
    result = with_explanations(telemetry.result(), of)
    return {one.part: one for one in result.findings[0].explanations}


def on_culprit(value: float, usual: float) -> Callable[[int, float], float]:
    return lambda rank, _: value if rank == 1 else usual


def clocks(telemetry: Telemetry) -> Telemetry:
    return telemetry.gauge("gpu_sm_clock", on_culprit(SLOW, USUAL), noise=10)


def on_cpu() -> Telemetry:
    return Telemetry(has_device=False, cause="contention")


def blocked(telemetry: Telemetry) -> Telemetry:
    return telemetry.counter("process_blocked_time", on_culprit(SIZE, 0.0), noise=0.2)


def no_core(telemetry: Telemetry) -> Telemetry:
    telemetry.counter("process_throttled_time", on_culprit(0, 0))
    return telemetry.counter("process_run_delay", on_culprit(SIZE + 0.01, 0.01), noise=0.2)


EXPLAINED: dict[str, Callable[[], Telemetry]] = {
    "thermal": lambda: clocks(Telemetry()).gauge("gpu_throttle_reasons", on_culprit(0x20, 0x4)),
    "power_brake": lambda: clocks(Telemetry()).gauge("gpu_throttle_reasons", on_culprit(0x84, 0x4)),
    "power_cap": lambda: clocks(Telemetry()).gauge("gpu_power_limit", on_culprit(450, 700)),
    "locked_clock": lambda: clocks(Telemetry()).gauge("gpu_throttle_reasons", on_culprit(0x2, 0)),
    "low_clock": lambda: clocks(Telemetry()).gauge("gpu_throttle_reasons", on_culprit(0x4, 0x4)),
    "other_process_on_device": lambda: (
        Telemetry().gauge("gpu_other_utilization", on_culprit(0.22, 0)).gauge("gpu_other_processes", on_culprit(1, 0))
    ),
    "pcie_link": lambda: (
        Telemetry(cause="input")
        .gauge("gpu_pcie_received", on_culprit(1.8e9, 1.8e9), noise=1e7)
        .gauge("gpu_pcie_width", on_culprit(8, 16))
        .gauge("gpu_pcie_generation", on_culprit(3, 5))
    ),
    "cpu_quota": lambda: on_cpu().counter("process_throttled_time", on_culprit(SIZE, 0), noise=0.2),
    "low_priority": lambda: no_core(on_cpu()).gauge("process_nice", on_culprit(15, 0)),
    "fewer_cores": lambda: no_core(on_cpu()).gauge("process_cores", on_culprit(1, 8)),
    "other_process_on_cores": lambda: no_core(on_cpu()).counter("neighbour_time", on_culprit(1, 0.02), noise=0.3),
    "no_core": lambda: no_core(on_cpu()),
    "garbage_collection": lambda: on_cpu().counter("process_gc_time", on_culprit(SIZE, 0), noise=0.2),
    "memory_pressure": lambda: blocked(on_cpu()).counter("process_major_faults", on_culprit(90, 0.1), noise=0.3),
    "slow_storage": lambda: blocked(on_cpu()).counter(
        "process_wait_time", on_culprit(SIZE, 0), text="read /data/shard (fuse.slowfs)"
    ),
    "slow_service": lambda: blocked(on_cpu()).counter("process_wait_time", on_culprit(SIZE, 0), text="recv socket"),
    "sleeps": lambda: blocked(on_cpu()).counter("process_wait_time", on_culprit(SIZE, 0), text="nanosleep"),
}
"""A part, and the telemetry of a rank that is slow by it."""


@pytest.mark.slow
@pytest.mark.parametrize("part", EXPLAINED)
def test_the_part_that_makes_a_rank_slow_is_named_and_sized(part: str) -> None:
    found = told(EXPLAINED[part]())
    assert [name for name, one in found.items() if one.word == "explains"] == [part]
    one = found[part]
    assert one.predicted_us is not None
    assert one.measured_us is not None
    assert 0.5 <= one.predicted_us / one.measured_us <= 2
    assert (one.fired, one.p_value) == (0, 1 / (one.tried + 1))
    assert one.tried >= 20


@pytest.mark.slow
@pytest.mark.parametrize("part", EXPLAINED)
def test_what_the_peers_show_as_well_names_nobody(part: str) -> None:
    alike = EXPLAINED[part]()
    of = alike.evidence().table.to_pylist()
    culprits = {}
    for row in of:
        if row["entity"] in ("gpu:" + uuid(1), "pid:1001"):
            culprits.setdefault((row["name"], row["time_ns"]), row["value"])
    twins = EXPLAINED[part]()
    twins.rows = type(twins.rows)()
    for row in of:
        twins.rows.add(
            row["time_ns"], row["entity"], row["name"], culprits[row["name"], row["time_ns"]], host=row["host"],
            text=row["text"],
        )  # fmt: skip
    assert not [name for name, one in told(twins).items() if one.word in ("explains", "consistent")]


def test_every_part_has_words_something_to_do_and_known_measures() -> None:
    for name, part in PARTS.items():
        assert part.measures <= MEASURES.keys(), name
        assert set(part.events) <= MEASURES.keys(), name
        assert part.words and part.do and part.observe, name
        assert part.sizes or part.counts or part.events or part.grows or part.signs or part.vanishes, name


def test_a_clock_that_was_as_low_before_the_rank_became_slow_explains_nothing() -> None:
    found = told(clocks(Telemetry(onset_s=60)).gauge("gpu_throttle_reasons", on_culprit(0x20, 0x4)))
    assert found["thermal"].word == "seen"
    assert found["thermal"].before == pytest.approx(SLOW, abs=10)


def test_a_clock_that_falls_when_the_rank_becomes_slow_explains_it() -> None:
    hot = Telemetry(onset_s=60).gauge("gpu_sm_clock", lambda rank, at: SLOW if rank == 1 and at >= 60 else USUAL)
    hot.gauge("gpu_throttle_reasons", lambda rank, at: 0x20 if rank == 1 and at >= 60 else 0)
    one = told(hot)["thermal"]
    assert (one.word, one.before) == ("explains", pytest.approx(USUAL))


def test_a_part_that_is_too_small_is_excluded_and_the_device_itself_is_left() -> None:
    fine = Telemetry().gauge("gpu_sm_clock", lambda *_: USUAL, noise=10).gauge("gpu_throttle_reasons", lambda *_: 0x4)
    fine.gauge("gpu_power_limit", lambda *_: 700.0).gauge("gpu_other_utilization", lambda *_: 0.0)
    fine.gauge("gpu_other_processes", lambda *_: 0.0)
    found = told(fine)
    assert {found[name].word for name in ("thermal", "power_cap", "low_clock", "other_process_on_device")} == {
        "excluded"
    }
    assert found["device_itself"].word == "consistent"
    assert "kair probe --rank 1" in (found["device_itself"].command or "")


def test_a_power_cap_on_all_devices_is_normal() -> None:
    """Trap 2: SwPowerCap is set on any loaded device."""
    capped = Telemetry().gauge("gpu_sm_clock", lambda *_: USUAL, noise=10).gauge("gpu_throttle_reasons", lambda *_: 0x4)
    assert told(capped)["power_cap"].word == "excluded"


def test_low_clocks_of_devices_that_wait_count_for_nothing() -> None:
    """Trap 1: here the innocent ranks wait, idle and clocked down, while the slow one works at its usual clock."""
    waiting = Telemetry().gauge("gpu_sm_clock", lambda rank, at: USUAL if rank == 1 or at % 2 else 345.0)
    waiting.gauge("gpu_throttle_reasons", lambda rank, at: 0 if rank == 1 or at % 2 else 0x1)
    found = told(waiting)
    assert found["low_clock"].word == "excluded"
    assert found["low_clock"].peers == pytest.approx(USUAL)


def test_a_culprit_that_idles_now_and_then_is_not_clocked_down() -> None:
    """Trap 1, the other way round: by its idle readings it would be 40 % slower."""
    idle = Telemetry().gauge("gpu_sm_clock", lambda rank, at: 345.0 if rank == 1 and at % 2 else USUAL)
    idle.gauge("gpu_throttle_reasons", lambda rank, at: 0x1 if rank == 1 and at % 2 else 0)
    assert told(idle)["low_clock"].word == "excluded"


def test_a_gauge_that_is_read_every_half_minute_excludes_nothing() -> None:
    """Trap 5."""
    seldom = Telemetry(interval_s=30, seconds=1800).gauge("gpu_sm_clock", lambda *_: USUAL, noise=10)
    one = told(seldom)["low_clock"]
    assert one.word == "not_observed"
    assert one.command is not None


def test_a_counter_excludes_however_seldom_it_is_read() -> None:
    seldom = Telemetry(interval_s=30, seconds=1800, has_device=False, cause="contention")
    assert told(seldom.counter("process_throttled_time", lambda *_: 0.0))["cpu_quota"].word == "excluded"


def test_few_innocent_windows_give_no_p_and_explain_nothing() -> None:
    short = Telemetry(ranks=2, seconds=30).gauge("gpu_sm_clock", on_culprit(SLOW, USUAL), noise=10)
    one = told(short.gauge("gpu_throttle_reasons", on_culprit(0x20, 0)))["thermal"]
    assert (one.word, one.p_value) == ("consistent", None)


def test_of_a_cause_far_larger_than_what_is_measured_nothing_more_is_said_than_that_it_is_there() -> None:
    small = Telemetry(excess_us=2_000.0).gauge("gpu_sm_clock", on_culprit(SLOW, USUAL), noise=10)
    assert told(small.gauge("gpu_throttle_reasons", on_culprit(0x20, 0)))["thermal"].word == "consistent"


def test_a_hot_rack_is_its_host_s() -> None:
    """Trap 14: the peers of its host are as slow as their clocks say, and nobody accuses them: it is on peers."""
    rack = Telemetry(per_host=2).gauge("gpu_sm_clock", lambda rank, _: SLOW if rank < 2 else USUAL, noise=10)
    rack.gauge("gpu_throttle_reasons", lambda rank, _: 0x20 if rank < 2 else 0)
    assert told(rack)["thermal"].word == "seen"


def test_temperature_clock_and_reason_count_once() -> None:
    """Trap 17: with the reason known, the clock is no second part."""
    found = told(EXPLAINED["thermal"]().gauge("gpu_temperature", on_culprit(92, 65)))
    assert "low_clock" not in found


def test_a_device_that_is_only_told_by_its_number_explains_nothing() -> None:
    """Trap 11: that the driver's third device is local rank 3's is an assumption."""
    hot = EXPLAINED["thermal"]()
    table = hot.evidence().table.to_pylist()
    hot.rows = type(hot.rows)()
    for row in table:
        index = int(row["entity"][8:16], 16)
        hot.rows.add(row["time_ns"], f"gpu index:{index}", row["name"], row["value"], host=row["host"])

    def unknown(known: object) -> object:
        identities = {rank: RankIdentity(rank, "node-0", local_rank=rank) for rank in range(4)}
        return replace(known, identities=identities, joins=Joins(identities, dict.fromkeys(range(4), "node-0")))  # type: ignore[type-var]

    one = told(hot, unknown)["thermal"]
    assert (one.word, one.joined_by) == ("consistent", "local_rank")


def test_what_a_source_tells_of_devices_that_are_tied_to_nobody_was_observed() -> None:
    """The command that was run is not asked for again."""
    found = told(Telemetry(), lambda known: replace(known, untied={1: {"gpu_sm_clock"}}))
    assert (found["thermal"].word, found["thermal"].command) == ("not_tied", None)
    assert found["pcie_link"].word == "not_observed", "nothing tells of it"
    tied = told(clocks(Telemetry()), lambda known: replace(known, untied={1: {"gpu_sm_clock"}}))
    assert tied["low_clock"].word == "explains", "another source ties it"


@pytest.mark.parametrize(("measure", "own", "usual"), [("gpu_pcie_width", 4, 16), ("gpu_pcie_generation", 1, 5)])
def test_a_narrow_or_slow_pcie_link_is_told_where_nothing_counts_its_bytes(
    measure: str, own: float, usual: float
) -> None:
    """nvidia-smi's CSV has width and generation, and no bytes."""
    plain = {"gpu_pcie_width": 16.0, "gpu_pcie_generation": 5.0}
    telemetry = Telemetry(cause="compute")
    for name, same in plain.items():
        telemetry.gauge(name, on_culprit(own, usual) if name == measure else on_culprit(same, same))
    one = told(telemetry)["pcie_link"]
    assert (one.word, one.measure, one.own, one.peers) == ("consistent", measure, own, usual)
    alike = Telemetry(cause="compute").gauge("gpu_pcie_width", on_culprit(8, 8))
    assert told(alike)["pcie_link"].word == "excluded", "as narrow on all"
    of_healthy = Telemetry(cause="compute").gauge("gpu_pcie_width", lambda rank, _: 4 if rank == 2 else 16)
    assert told(of_healthy)["pcie_link"].word == "excluded", "of a healthy rank"


def test_what_nothing_measures_comes_with_the_command_that_would() -> None:
    found = told(Telemetry())
    assert {one.word for one in found.values()} == {"not_observed"}
    assert found["thermal"].command == "nvidia-smi -q -d PERFORMANCE,TEMPERATURE on its host"


def test_the_driver_s_error_on_this_device_alone_is_consistent_and_on_all_is_seen() -> None:
    """Trap 13: one cause has many reporters."""
    alone = Telemetry(onset_s=60).event("xid", 1, 55.0, 63.0, "Row Remapper: New row marked for remapping")
    one = told(alone)["device_memory"]
    assert (one.word, one.own, one.proofs) == ("consistent", 63.0, ("log:7",))
    every = Telemetry(onset_s=60)
    for rank in range(4):
        every.event("xid", rank, 55.0, 63.0)
    assert told(every)["device_memory"].word == "seen"


def test_errors_that_any_rank_may_have_are_not_this_one_s() -> None:
    """Three replays against two, two and one: chance."""
    few = Telemetry(cause="input").counter("gpu_pcie_replays", lambda rank, _: (2, 3, 2, 1)[rank] / 120)
    assert told(few)["pcie_errors"].word in ("seen", "not_observed")
    many = Telemetry(cause="input").counter("gpu_pcie_replays", on_culprit(5, 0.02), noise=0.3)
    assert told(many)["pcie_errors"].word == "consistent"


def test_memory_that_grows_on_this_rank_alone_is_consistent() -> None:
    leak = on_cpu().gauge("process_memory", lambda rank, at: 2e9 + (1e7 * at if rank == 1 else 0), noise=1e6)
    assert told(leak)["memory_leak"].word == "consistent"
    every = on_cpu().gauge("process_memory", lambda _, at: 2e9 + 1e7 * at, noise=1e6)
    assert told(every)["memory_leak"].word == "excluded"


def test_a_host_s_cores_are_no_reason_for_what_a_device_computes() -> None:
    on_gpu = no_core(Telemetry(cause="compute"))
    assert "no_core" not in told(on_gpu)


def test_a_counter_that_begins_anew_counts_on() -> None:
    """Trap 8: a driver that is loaded again counts from 0; what it counted since is what is known."""
    rows = on_cpu()
    rows.counter("process_throttled_time", on_culprit(SIZE, 0))
    table = rows.evidence().table.to_pylist()
    again = on_cpu()
    half = {row["entity"]: row["value"] for row in table if row["time_ns"] == table[len(table) // 2]["time_ns"]}
    for row in table:
        late = row["time_ns"] >= table[len(table) // 2]["time_ns"]
        value = row["value"] - half[row["entity"]] if late else row["value"]
        again.rows.add(row["time_ns"], row["entity"], row["name"], value, host=row["host"])
    assert told(again)["cpu_quota"].word == "explains"


def looks(telemetry: Telemetry, share: Callable[[int, float], float], text: str, **of: str) -> Telemetry:
    """What a sampler sees that looks once a second: all of the second, or nothing of it."""
    seen = {(rank, at): telemetry.random.random() < share(rank, at) for rank in range(4) for at in telemetry.times_s()}
    return telemetry.counter("process_wait_time", lambda rank, at: float(seen[rank, at]), text=text, **of)


def blocked_since(onset_s: float, seconds: float) -> Telemetry:
    late = Telemetry(has_device=False, cause="input", onset_s=onset_s, seconds=seconds)
    return late.counter("process_blocked_time", lambda rank, at: SIZE if rank == 1 and at >= onset_s else 0.0)


def test_what_few_looks_saw_is_there_where_it_is_as_large_as_they_can_tell() -> None:
    """Of 40 looks 8 shall meet it: in most windows of a few seconds none does."""
    late = blocked_since(30, 70)
    looks(late, lambda rank, at: SIZE if rank == 1 and at >= 30 else 0.0, "read /data/shard (nfs4)")
    found = told(looks(late, lambda *_: 0.3, "futex"))
    assert [name for name, one in found.items() if one.word == "explains"] == ["slow_storage"]


def test_what_is_waited_in_now_and_then_is_not_what_the_rank_is_slow_by() -> None:
    late = blocked_since(30, 400)
    looks(late, lambda rank, at: SIZE if rank == 1 and at >= 30 else 0.0, "read /data/shard (nfs4)")
    found = told(looks(late, lambda rank, _: 0.03 if rank == 1 else 0.0, "nanosleep"))
    assert (found["slow_storage"].word, found["sleeps"].word) == ("explains", "excluded")


def test_a_wait_that_nobody_was_seen_in_yet_is_known_to_be_none() -> None:
    """A sampler tells a wait from when it is met; before that it looked as well, and saw the ranks wait in others."""
    late = blocked_since(60, 120)
    looks(late, lambda *_: 0.4, "futex")
    whole = looks(late, lambda rank, at: SIZE if rank == 1 and at >= 60 else 0.0, "recv socket").evidence()
    late.rows = type(late.rows)()
    met = set()
    for row in whole.table.to_pylist():
        key = row["entity"], row["text"]
        if row["text"] != "recv socket" or row["value"] > 0 or key in met:
            met.add(key)
            late.rows.add(
                row["time_ns"], row["entity"], row["name"], row["value"], host=row["host"], text=row["text"]
            )  # fmt: skip
    one = told(late)["slow_service"]
    assert (one.word, one.fired) == ("explains", 0)
    assert one.tried == 3 * 40


@pytest.mark.parametrize("always_us", [0.0, 20_000.0])
def test_what_began_late_is_measured_since_then(always_us: float) -> None:
    """The ranking tells the excess of all steps: the finding is of every fourth, and `always_us` is in all of them."""
    late = Telemetry(has_device=False, cause="contention", onset_s=90)
    late.counter("process_throttled_time", lambda rank, at: SIZE if rank == 1 and at >= 90 else 0.0)
    all_steps = tuple(
        replace(row, self_time_excess_us=row.self_time_excess_us / 4 + always_us) for row in late.result().ranking
    )
    known = late.known()
    assert known.course.own_us is not None
    known.course.own_us[:, 1] += always_us
    result = with_explanations(replace(late.result(), ranking=all_steps), known)
    one = next(one for one in result.findings[0].explanations if one.part == "cpu_quota")
    assert one.word == "explains"
    assert one.measured_us == pytest.approx(8_000, rel=0.02)


def test_what_was_before_is_told_of_windows_in_which_peers_are_known() -> None:
    """The culprit's counter grew as fast while it started; where nothing is read of peers, that compares nothing."""
    late = Telemetry(has_device=False, cause="contention", onset_s=60)
    late.counter("process_throttled_time", lambda rank, at: SIZE if rank == 1 and (at < 20 or at >= 60) else 0.0)
    one = told(late)["cpu_quota"]
    assert (one.word, one.before) == ("explains", pytest.approx(SIZE / 3, rel=0.05))
    rows = late.evidence().table.to_pylist()
    late.rows = type(late.rows)()
    for row in rows:
        started = row["time_ns"] >= rows[0]["time_ns"] + 20 * NS
        if row["entity"] == "pid:1001" or started:
            late.rows.add(row["time_ns"], row["entity"], row["name"], row["value"], host=row["host"])
    one = told(late)["cpu_quota"]
    assert (one.word, one.before) == ("explains", pytest.approx(0.0, abs=0.01))


def test_a_sign_that_is_read_seldom_and_holds_in_between_makes_no_window_longer() -> None:
    often = no_core(on_cpu())
    seldom = Telemetry(has_device=False, interval_s=40).gauge("process_nice", on_culprit(15, 0)).evidence()
    told_at_changes = replace(seldom, sources=(replace(seldom.sources[0], name="seldom", holds_s=80.0),))
    known = replace(often.known(), evidence=together([often.evidence(), told_at_changes]))
    one = {one.part: one for one in with_explanations(often.result(), known).findings[0].explanations}["low_priority"]
    assert one.word == "explains"
    assert one.tried >= 20


def test_a_change_that_is_told_late_happened_since_the_look_before() -> None:
    """Looked at every 10 s, told when it changes: 8 cores up to the look at 30 s, 1 from that at 40 s on."""
    source = EvidenceSource("capture", "capture", interval_s=10.0, holds_s=50.0)
    told_at, edges = np.array([0, 40], np.int64), np.arange(0, 70, 10, dtype=np.int64)
    series = Series("process_cores", "pid:1", None, None, source, "process", told_at * NS, np.array([8.0, 1.0]))
    assert series.over(edges * NS).tolist() == [8, 8, 8, pytest.approx(math.nan, nan_ok=True), 1, 1]


def test_without_findings_nothing_is_explained() -> None:
    hot = EXPLAINED["thermal"]()
    healthy = replace(hot.result(), findings=(), verdict="no_straggler")
    assert with_explanations(healthy, hot.known()) == healthy


@pytest.mark.slow
def test_the_steps_of_the_rank_decide_where_it_comes_and_goes() -> None:
    """The clock is low in every other half minute, and the rank is as slow in all of them."""
    wrong = Telemetry(seconds=240).gauge(
        "gpu_sm_clock", lambda rank, at: 900.0 if rank == 1 and at % 60 < 30 else USUAL
    )
    assert told(wrong)["low_clock"].word == "seen"


@pytest.mark.slow
def test_steps_that_no_peer_recorded_are_left_out() -> None:
    """Their rows are lost: such steps say nothing of windows, and warn of nothing."""
    wrong = Telemetry(seconds=240).gauge(
        "gpu_sm_clock", lambda rank, at: 900.0 if rank == 1 and at % 60 < 30 else USUAL
    )
    known = wrong.known()
    assert known.course.own_us is not None
    known.course.own_us[::7, [0, 2, 3]] = np.nan
    known.course.own_us[:, 3] = np.nan
    found = with_explanations(wrong.result(), known).findings[0].explanations
    assert next(one.word for one in found if one.part == "low_clock") == "seen"


def test_sizes_are_what_they_should_be_by_hand() -> None:
    one = told(EXPLAINED["thermal"]())["thermal"]
    assert one.predicted_us == pytest.approx(0.7 * STEP_US * (USUAL / SLOW - 1), rel=0.02)
    quota = told(EXPLAINED["cpu_quota"]())["cpu_quota"]
    assert quota.predicted_us == pytest.approx(SIZE * STEP_US, rel=0.05)
    shared = told(EXPLAINED["other_process_on_device"]())["other_process_on_device"]
    assert shared.predicted_us == pytest.approx(0.7 * STEP_US * 0.22 / 0.78, rel=0.02)
    # 1.8 GB/s are 72 MB a step: at 8 lanes of 0.985 GB/s 9.1 ms, at 16 of 3.938 GB/s 1.1 ms.
    link = told(EXPLAINED["pcie_link"]())["pcie_link"]
    assert link.predicted_us == pytest.approx((72e6 / 7.88e9 - 72e6 / 63.008e9) * 1e6, rel=0.02)
    assert not math.isnan(link.predicted_us or math.nan)


def test_an_error_that_follows_from_another_or_comes_from_the_program_speaks_for_no_part() -> None:
    """Trap 13: 145 follows from 149; 31 is the program's own."""
    for code in (145.0, 31.0):
        told_of = told(Telemetry(onset_s=60, cause="communication").event("xid", 1, 55.0, code))
        assert not {name for name, one in told_of.items() if one.word in ("explains", "consistent")}
    cause = told(Telemetry(onset_s=60, cause="communication").event("xid", 1, 55.0, 149.0))
    assert cause["nvlink"].word == "consistent"
    assert "device_error" not in cause


def test_a_rank_that_lacks_memory_waits_for_pages_and_has_the_kernel_look_for_them() -> None:
    faults = (
        on_cpu()
        .counter("process_blocked_time", on_culprit(SIZE / 3, 0.0))
        .counter("process_kernel_time", on_culprit(0.5 * SIZE, 0.01))
    )
    one = told(faults.counter("process_major_faults", on_culprit(90, 0.1)))["memory_pressure"]
    assert one.word == "explains"
    assert one.predicted_us == pytest.approx((SIZE / 3 + SIZE / 2 - 0.01) * STEP_US, rel=0.05)


def test_a_leak_that_began_long_before_the_rank_was_slow_is_told() -> None:
    leak = Telemetry(has_device=False, cause="input", onset_s=110)
    leak.gauge("process_memory", lambda rank, at: 2e9 + (1e7 * at if rank == 1 else 0), noise=1e6)
    assert told(leak)["memory_leak"].word == "consistent"


def test_slow_storage_is_told_with_the_file_that_is_waited_for() -> None:
    reads = EXPLAINED["slow_storage"]().counter(
        "process_wait_time", on_culprit(0.01, 0.01), text="read /etc/hosts (ext4)"
    )
    assert told(reads)["slow_storage"].text == "read /data/shard (fuse.slowfs)"


def test_a_link_that_saves_power_while_its_device_idles_is_no_slow_one() -> None:
    """Trap 3."""
    saving = Telemetry(cause="input").gauge("gpu_pcie_received", on_culprit(1.8e9, 1.8e9))
    saving.gauge("gpu_pcie_generation", lambda rank, at: 1 if rank == 1 and at % 2 else 5)
    saving.gauge("gpu_throttle_reasons", lambda rank, at: 0x1 if rank == 1 and at % 2 else 0)
    assert told(saving.gauge("gpu_pcie_width", lambda *_: 16))["pcie_link"].word == "excluded"


def test_a_share_of_time_with_a_kernel_speaks_for_nothing() -> None:
    """Trap 4: a device that waits in NCCL has a kernel all the time."""
    assert not [name for name, part in PARTS.items() if "gpu_utilization" in part.measures]
    spinning = Telemetry().gauge("gpu_utilization", on_culprit(1.0, 0.4))
    assert {one.word for one in told(spinning).values()} == {"not_observed"}


def test_a_device_without_a_margin_is_told_by_its_reasons() -> None:
    """Trap 12: an A100 has no thermal margin."""
    assert not [name for name, part in PARTS.items() if "gpu_temperature_margin" in part.measures]


def test_all_devices_slow_alike_are_nobody_s() -> None:
    """Trap 15: slower by design, as by power smoothing or in the afternoon."""
    slow = Telemetry(excess_us=500.0).gauge("gpu_sm_clock", lambda _, at: USUAL * (0.98 if at > 60 else 1.0), noise=3)
    assert told(slow)["low_clock"].word == "excluded"


def test_without_a_kernel_log_no_error_is_excluded() -> None:
    """Trap 16: a container sees no dmesg. A log excludes where it is of this host, and goes on behind the last step."""

    def log_of(host: str, until_s: float) -> Telemetry:
        log = Telemetry(observes=("xid", "sxid"))
        log.host = lambda _: host  # type: ignore[method-assign]
        for at in (-1.0, until_s):
            log.event("link_up", 0, at)
        return log

    def said(log: Telemetry) -> str:
        evidence = log.evidence()
        return told(Telemetry(), lambda known: replace(known, evidence=evidence))["device_error"].word

    assert told(Telemetry())["device_error"].word == "not_observed"
    assert said(log_of("node-0", 121.0)) == "excluded"
    assert said(log_of("node-0", 90.0)) == "not_observed"
    assert said(log_of("node-9", 121.0)) == "not_observed"


def test_forged_ranks_and_other_jobs_lines_change_nothing() -> None:
    """Trap 18."""
    hot = EXPLAINED["thermal"]()
    for rank, host in ((1, "node-7"), (99, "node-0"), (1, None)):
        hot.rows.add(
            hot.rows.table()["time_ns"][0].as_py(), "job:4711", "job_event", host=host, text=f"rank {rank} died"
        )
    clean, forged = told(EXPLAINED["thermal"]()), told(hot)
    assert {name: one.word for name, one in forged.items()} == {name: one.word for name, one in clean.items()}


def test_memory_that_settles_is_no_leak() -> None:
    """One megabyte of two gigabytes, in the order of time."""
    settles = on_cpu().gauge("process_memory", lambda rank, at: 2e9 + (1e4 * at if rank == 1 else 0))
    assert told(settles)["memory_leak"].word == "excluded"


def test_memory_that_settles_is_no_leak_where_the_rank_was_read_later_than_its_peers() -> None:
    """A rank's first value is its own first, even where the first window has none of it."""
    read = on_cpu().gauge(
        "process_memory",
        lambda rank, at: math.nan if rank == 1 and at < 10 else 2e9 + (1e4 * at if rank == 1 else 0),
    )
    found = told(read)["memory_leak"]
    assert found.word == "excluded"
    assert found.before == pytest.approx(2e9, rel=1e-3)


def test_an_event_of_last_hour_is_not_of_this_finding() -> None:
    old = Telemetry(onset_s=60).event("xid", 1, 55.0 - 3600.0, 63.0)
    assert told(old)["device_memory"].word == "not_observed"
    later = Telemetry(onset_s=60).event("xid", 1, 121.0, 63.0)
    assert told(later)["device_memory"].word == "not_observed"


def test_of_several_events_the_one_nearest_the_onset_is_told() -> None:
    several = Telemetry(onset_s=60).event("xid", 1, 10.0, 63.0).event("xid", 1, 58.0, 94.0).event("xid", 1, 110.0, 63.0)
    assert told(several)["device_memory"].own == 94.0


def test_a_log_of_an_unknown_clock_excludes_nothing() -> None:
    log = Telemetry(observes=("xid", "sxid"), clock="unknown")
    for at in (-1.0, 121.0):
        log.event("link_up", 0, at)
    evidence = log.evidence()
    assert told(Telemetry(), lambda known: replace(known, evidence=evidence))["device_error"].word == "not_observed"


def test_each_innocent_rank_is_held_against_the_others_and_not_against_itself() -> None:
    values = np.array([[9.0], [1.0], [2.0], [6.0]])
    assert peers_of(values)[:, 0].tolist() == [2.0, 4.0, 3.5, 1.5]
    assert _extremes(values, least=False)[:, 0].tolist() == [6.0, 6.0, 6.0, 2.0]
    assert _extremes(values, least=True)[:, 0].tolist() == [1.0, 2.0, 1.0, 1.0]


def test_of_two_directions_of_a_link_the_busier_one_counts() -> None:
    """400 MB/s out and 100 in are 16 MB a step: at 10 Gb/s 12.8 ms, at 100 Gb/s 1.28 ms."""
    slow = Telemetry(cause="communication", excess_us=11_520.0)
    slow.gauge("nic_speed", on_culprit(10, 100)).counter("nic_sent", lambda *_: 4e8).counter(
        "nic_received", lambda *_: 1e8
    )
    assert told(slow)["nic_speed"].predicted_us == pytest.approx(11_520.0, rel=0.02)


def test_a_link_that_is_down_speaks_though_nothing_says_what_it_costs() -> None:
    down = Telemetry(cause="communication").gauge("gpu_nvlink_active_links", on_culprit(12, 18))
    down.counter("gpu_nvlink_errors", lambda *_: 0.0)
    one = told(down)["nvlink"]
    assert (one.word, one.own, one.peers) == ("consistent", 12.0, 18.0)


@pytest.mark.parametrize("is_over", [True, False])
def test_of_a_fault_that_is_over_only_its_own_steps_are_looked_at(is_over: bool) -> None:
    """It sleeps from second 20 to 50 of 120: of all since then that is 30 %, too little to be the fault."""
    slept = Telemetry(has_device=False, cause="host", onset_s=20)
    for name in ("process_blocked_time", "process_wait_time"):
        text = {"text": "nanosleep"} if name == "process_wait_time" else {}
        slept.counter(name, lambda rank, at: SIZE if rank == 1 and 20 <= at < 50 else 0.0, noise=0.2, **text)
    result, known, last = slept.result(), slept.known(), int(50e6 / STEP_US) - 1
    assert known.course.own_us is not None
    known.course.own_us[last + 1 :, 1] -= slept.excess_us
    finding = replace(result.findings[0], until=last, steps=tuple(range(slept.onset_step(), last + 1)))
    result = replace(result, findings=(finding,)) if is_over else result
    (one,) = [one for one in with_explanations(result, known).findings[0].explanations if one.part == "sleeps"]
    if not is_over:
        assert one.measured_us == pytest.approx(8_000 * 30 / 100, rel=0.05)
        return
    assert (one.word, one.measured_us) == ("explains", pytest.approx(8_000, rel=0.05))


def test_what_a_rank_has_at_its_schedule_is_not_excluded_by_the_steps_between() -> None:
    """It lacks a core for 4 of every 40 s: a tenth of the time, and all of it around the steps that are slow."""
    lacks = Telemetry(has_device=False, cause="host")
    lacks.counter("process_run_delay", lambda rank, at: SIZE if rank == 1 and at % 40 < 4 else 0.0)
    result, every = lacks.result(), int(40e6 / STEP_US)
    at_times = replace(result.findings[0], pattern="intermittent", steps=tuple(range(0, 3 * every, every)))
    words = {}
    for finding in (at_times, replace(at_times, every=every)):
        found = with_explanations(replace(result, findings=(finding,)), lacks.known()).findings[0].explanations
        words[finding.every] = next(one.word for one in found if one.part == "no_core")
    assert words[None] == "excluded"
    assert words[every] != "excluded"


def without(telemetry: Telemetry, rank: int, begin_s: float, end_s: float) -> Telemetry:
    """The same without what is read of a rank's device between these times."""
    rows, telemetry.rows = telemetry.rows.table().to_pylist(), type(telemetry.rows)()
    for row in rows:
        at_s = (row["time_ns"] - BEGIN_NS) / NS
        if row["entity"] != f"gpu:{uuid(rank)}" or not begin_s < at_s < end_s:
            telemetry.rows.add(row["time_ns"], row["entity"], row["name"], row["value"], host=row["host"], raw="log:7")
    return telemetry


def read_of_all(**more: float) -> Telemetry:
    alike = on_culprit(1755, 1755)
    return Telemetry(**more).gauge("gpu_sm_clock", alike, noise=10).gauge("gpu_power", on_culprit(600, 600), noise=10)


def test_telemetry_that_stops_while_a_rank_is_slow_may_be_a_sign() -> None:
    one = told(without(read_of_all(onset_s=60.0), 1, 70, 1000))["lost_telemetry"]
    assert (one.word, one.at_ns, one.entity) == ("consistent", BEGIN_NS + 70 * NS, f"gpu:{uuid(1)}")
    assert (one.fired, one.tried, one.predicted_us) == (0, 3, None)
    assert explanation_in_words(one).startswith(
        "rank 1's telemetry, which stopped: at 14:14:30 UTC ± 500 ms, 10.0 s after it became slow; "
        "no reading in source for 49 s"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "telemetry",
    [
        read_of_all,
        lambda: without(read_of_all(), 2, 70, 1000),
        lambda: without(read_of_all(), 1, 70, 79),
        lambda: without(read_of_all(onset_s=110.0), 1, 20, 40),
        lambda: without(read_of_all(), 1, 5, 1000),
        lambda: without(without(without(without(read_of_all(), 0, 70, 999), 1, 70, 999), 2, 70, 999), 3, 70, 999),
    ],
    ids=["all is read", "a peer's", "shortly", "long before", "not regular before", "of all"],
)
def test_telemetry_is_not_lost(telemetry: Callable[[], Telemetry]) -> None:
    assert "lost_telemetry" not in told(telemetry())


def test_telemetry_that_peers_lose_as_well_is_nobodys() -> None:
    assert told(without(without(read_of_all(), 1, 70, 90), 2, 69, 91))["lost_telemetry"].word == "seen"
