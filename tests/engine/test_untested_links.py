"""Links that too few others resemble: `kair sensitivity` says that it can tell nothing of them."""

from pathlib import Path

from support.trace_builder import trace

from kair_engine.results.sensitivity import UntestedLinks
from kair_engine.sensitivity.untested_links import untested_links


def of_groups(folder: Path, *groups: str, also: str = "") -> tuple[UntestedLinks, ...] | None:
    lines = ["step 1: 0+1000"]
    for group in groups:
        ranks = group.split("[")[1].rstrip("]")
        lines.append(f"{ranks} gpu7 | mm 0+10 | allreduce@{group}#1 20+40")
    return untested_links(trace(folder, "\n".join([*lines, also])))


def test_two_groups_are_too_few_and_four_are_enough(tmp_path: Path) -> None:
    two = of_groups(tmp_path / "two", "a[0,1]", "b[2,3]")
    assert two == (UntestedLinks(("a[0,1]", "b[2,3]"), 40),)
    assert of_groups(tmp_path / "four", "a[0,1]", "b[2,3]", "c[4,5]", "d[6,7]") == ()


def test_the_one_group_of_all_is_compared_with_nothing(tmp_path: Path) -> None:
    groups = ("a[0,1]", "b[2,3]", "c[4,5]", "d[6,7]")
    found = of_groups(tmp_path, *groups, also="0-7 gpu7 | allreduce@world#1 100+5")
    assert found == (UntestedLinks(("world",), 5),)
