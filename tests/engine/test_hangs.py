"""Hangs of many kinds: who, which call, where; and with dumps that are damaged never somebody who is innocent."""

import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from support.hangs import (
    KINDS,
    PER_KIND,
    VERSIONS,
    Call,
    Hang,
    all_hangs,
    damaged,
    dumps_of,
    job_of,
    judged,
    named,
)

from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.triage.analysis import triage
from kair_engine.triage.hangs.analysis import hang


@cache
def hangs() -> list[Hang]:
    return all_hangs()


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_hangs_of_all_kinds_are_told_whole_in_every_version(version: str) -> None:
    counts = Counter((one.kind, judged(one, hang(job_of(dumps_of(one, version), one.world)))) for one in hangs())
    # Version 2.0 has no data types: there all ranks are in one call, and none leaves it.
    untold = {("another data type", "open"): PER_KIND} if version == "2.0" else {}
    assert {key: count for key, count in counts.items() if key[1] != "whole"} == untold
    assert len(hangs()) == PER_KIND * len(KINDS) == sum(counts.values())


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.1", "2.5", "2.10"])
def test_damaged_dumps_accuse_nobody_who_is_innocent(version: str) -> None:
    for at, one in enumerate(hangs()):
        for what, left in damaged(one, version, hangs(), random.Random(at)).items():
            result = hang(job_of(left, one.world))
            if "gone" in what and result.verdict == "straggler" and not one.culprits and len(left) == one.world - 1:
                # Who left no dump, and who has not arrived, look the same.
                assert {fact.kind for fact in result.findings[0].evidence} >= {"no_dump"}
                continue
            assert judged(one, result) != "innocent", (what, one.kind, one.culprits, named(result))


@pytest.mark.slow
def test_dumps_that_are_cut_anywhere_accuse_nobody_who_is_innocent(tmp_path: Path) -> None:
    found = Counter()
    for at, one in enumerate(hangs()):
        chance, folder = random.Random(at), tmp_path / str(at)
        one.write(folder, chance.choice(("2.2", "2.5", "2.10")))
        path = chance.choice(sorted(folder.iterdir()))
        content = path.read_bytes()
        path.write_bytes(content[: chance.randrange(len(content))])
        found[judged(one, triage(open_trace(folder, cache=tmp_path / "cache")))] += 1
    assert found["innocent"] == 0
    assert found["whole"] + found["who"] > len(hangs()) // 2


def ran(programs: list[list[Call]], groups: dict[str, tuple[str, tuple[int, ...]]]) -> TriageResult:
    one = Hang("", groups, programs, (), "", 0).run()
    return hang(job_of(dumps_of(one), one.world))


def kinds(result: TriageResult) -> set[str]:
    return {fact.kind for finding in result.findings for fact in finding.evidence}


WORLD = {"0": ("default_pg", (0, 1, 2, 3))}
SUM = Call("0", "all_reduce", 1, (8,))


def test_two_halves_that_differ_are_told_and_nobody_is_accused() -> None:
    other = Call("0", "all_reduce", 2, (9,))
    result = ran([[SUM], [SUM], [other], [other]], WORLD)
    assert (result.verdict, named(result)) == ("job_wide", set())
    assert {"no_majority", "called"} <= kinds(result)


def test_sizes_may_differ_where_they_need_not_agree() -> None:
    calls = [Call("0", "all_to_all", 1, (size,), never_ends=True) for size in (1, 2, 3, 4)]
    assert kinds(ran([[call] for call in calls], WORLD)) >= {"all_arrived"}


def test_shapes_of_as_many_elements_are_no_mismatch() -> None:
    calls = [Call("0", "all_reduce", 1, shape, never_ends=True) for shape in ((2, 8), (16,), (4, 4), (8, 2))]
    assert kinds(ran([[call] for call in calls], WORLD)) >= {"all_arrived"}


def test_groups_that_are_called_in_another_order_name_the_one_rank_that_does() -> None:
    groups = {**WORLD, "1": ("other", (0, 1, 2, 3))}
    other = Call("1", "all_reduce", 2, (8,))
    result = ran([[SUM, other], [SUM, other], [SUM, other], [other, SUM]], groups)
    assert (result.verdict, named(result)) == ("straggler", {3})
    assert "waits_elsewhere" in kinds(result)


def test_two_ranks_that_call_two_groups_crosswise_wait_for_each_other() -> None:
    groups = {"0": ("default_pg", (0, 1)), "1": ("other", (0, 1))}
    other = Call("1", "all_reduce", 2, (8,))
    result = ran([[SUM, other], [other, SUM]], groups)
    assert (result.verdict, named(result)) == ("job_wide", set())
    assert "wait_circle" in kinds(result)


def test_a_rank_that_is_no_member_is_neither_named_nor_counted() -> None:
    one = Hang("", {**WORLD, "1": ("pair", (0, 1))}, [[Call("1", "barrier", 1)], [], [], []], (), "", 0).run()
    dumps = dumps_of(one)
    for rank in (2, 3):
        dumps[rank]["pg_config"]["1"] = dumps[0]["pg_config"]["1"]
        dumps[rank]["pg_status"]["1"] = {"last_enqueued_collective": -1, "last_completed_collective": -1}
    result = hang(job_of(dumps, 4))
    assert named(result) == {1}
    assert result.findings[0].evidence[0].figures == {"sequence": 1, "waiting": 1, "members": 2}


def test_ranks_that_all_made_the_same_calls_of_an_untold_end_leave_it_open() -> None:
    one = Hang("", WORLD, [[SUM] * 3] * 4, (), "", 0, returns_only=True).run()
    result = hang(job_of(dumps_of(one), 4))
    assert (result.verdict, [one.code for one in result.warnings]) == ("inconclusive", ["completion_untold"])
