"""On which devices findings are: named as one looks them up, whole where one copies them."""

from dataclasses import replace

from support.answers import triaged
from support.places import SAMPLES

from kair_engine.evidence.devices import devices_of, with_devices
from kair_engine.ranks import Rank
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_tui.render.triage import facts, suggestion_of

UUID = "GPU-5f3e0000-1111-2222-3333-444444444444"
IDENTITIES = {
    rank: RankIdentity(
        rank,
        host=f"node-{rank // 4}",
        device=DeviceIdentity(UUID[:-1] + str(rank % 10), f"0000:{rank:02x}:00.0", rank % 4),
    )
    for rank in range(12)
}


def found(**changed: object) -> TriageResult:
    """A compute finding about rank 1, with these differences."""
    result = triaged(SAMPLES / "slow_operator")
    (finding, *_) = result.findings
    fields = {**vars(finding), "cause": "compute", "evidence": (), "explanations": (), **changed}
    return replace(result, findings=(Finding(**fields),))


def test_a_finding_names_the_devices_of_its_ranks() -> None:
    (finding,) = with_devices(found(ranks=(Rank(5), Rank(2), Rank(99))), IDENTITIES).findings
    assert finding.devices == (
        f"node-1 GPU 1, {UUID[:-1]}5, 0000:05:00.0",
        f"node-0 GPU 2, {UUID[:-1]}2, 0000:02:00.0",
    )


def test_what_is_nobodys_fault_names_devices_of_few_ranks_only() -> None:
    few, many = (tuple(map(Rank, range(count))) for count in (8, 9))
    for seen_on, devices in ((few, 8), (many, 0)):
        (finding,) = with_devices(found(ranks=(), seen_on=seen_on), IDENTITIES).findings
        assert len(finding.devices) == devices


def test_who_is_accused_goes_before_who_it_was_seen_on() -> None:
    (finding,) = with_devices(found(ranks=(Rank(3),), seen_on=(Rank(4),)), IDENTITIES).findings
    assert [one[:12] for one in finding.devices] == ["node-0 GPU 3"]


def test_a_device_that_several_ranks_share_is_named_once() -> None:
    shared = {rank: replace(IDENTITIES[0], rank=rank) for rank in range(3)}
    assert len(devices_of(range(3), shared)) == 1


def test_a_device_of_which_only_the_process_count_is_known_is_not_named() -> None:
    """One cannot look it up by that number."""
    known = {1: RankIdentity(1, host="node-0", device=DeviceIdentity(ordinal=3, model="NVIDIA H100"))}
    result = found(ranks=(Rank(1),))
    assert with_devices(result, known) == result
    assert with_devices(result, {}) == result


def test_the_text_shows_a_short_uuid_and_the_suggestion_a_whole_one() -> None:
    (finding,) = with_devices(found(ranks=(Rank(3),), operator=None), IDENTITIES).findings
    whole = f"node-0 GPU 3, {UUID[:-1]}3, 0000:03:00.0"
    assert "device: node-0 GPU 3, GPU-5f3e…4443, 0000:03:00.0" in facts(finding)
    assert f"device: {whole}" in facts(finding, wide=True)
    assert f"other load of rank 3's device ({whole}) with a peer's; if it stays slow" in suggestion_of(finding)
    assert "'s device with a peer's" in suggestion_of(replace(finding, devices=()))


def test_many_devices_are_counted_but_where_all_are_asked_for() -> None:
    ranks = tuple(map(Rank, range(6)))
    (finding,) = with_devices(found(ranks=ranks, cause="communication"), IDENTITIES).findings
    (line,) = (fact for fact in facts(finding) if fact.startswith("devices: "))
    assert (line.count("GPU-"), line.endswith(" and 2 more")) == (4, True)
    (line,) = (fact for fact in facts(finding, wide=True) if fact.startswith("devices: "))
    assert (line.count(UUID[:-1]), line.endswith("more")) == (6, False)


def test_causes_that_are_no_devices_name_none() -> None:
    for cause in ("uneven_work", "input", "host", "garbage_collection"):
        (finding,) = with_devices(found(ranks=(Rank(3),), cause=cause), IDENTITIES).findings
        assert finding.devices
        assert not any(fact.startswith("device") for fact in facts(finding))
