"""Which file is which rank, and what passes for one recording."""

from pathlib import Path

import pytest
from support import kineto_builder as kb

from kair_engine.errors import InputError
from kair_engine.readers.paths import ranks_from_siblings
from kair_engine.recording.opening import open_trace
from kair_engine.trace.loading import load_step


def rankless(folder: Path, *names: str) -> list[Path]:
    return [kb.write(folder / name, kb.trace(kb.training_steps(1), rank=None)) for name in names]


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("train_resnet18_3.json", "train_resnet18_11.json"), (3, 11)),
        (("resnet18_0_of_2.json.gz", "resnet18_1_of_2.json.gz"), (0, 1)),
        (("2024_gpu_a_0_1234.json", "2024_gpu_a_1_1235.json"), (0, 1)),
        (("step5_00.json", "step5_01.json"), (0, 1)),
    ],
)
def test_the_rank_is_the_number_that_varies_within_the_folder(
    tmp_path: Path, names: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    files = rankless(tmp_path / "job", *names)
    opened = open_trace(tmp_path / "job", cache=tmp_path / "cache").job
    assert opened.ranks == ranks
    assert "rank_from_order" not in [warning.code for warning in opened.warnings]
    # One of them alone is who it is among its siblings.
    assert open_trace(files[1], cache=tmp_path / "cache").job.ranks == (ranks[1],)


def test_a_number_that_all_names_have_is_no_rank(tmp_path: Path) -> None:
    (only,) = rankless(tmp_path / "job", "train_resnet18.json")
    assert ranks_from_siblings([only]) == {}
    assert open_trace(only, cache=tmp_path / "cache").job.ranks == (0,)


def merged(folder: Path, *, devices: bool, processes: tuple[int, ...] = (71, 72, 90)) -> Path:
    """Three ranks in one file, the second with kernels of its own; each on its device, or all on one."""
    events = []
    for at, pid in enumerate(processes):
        of_rank = [*kb.training_steps(2), *([kb.op("aten::only_here", 10_300, 20)] if at == 1 else [])]
        for event in of_rank:
            on_device = event["cat"] == "kernel"
            events.append(event | ({"pid": at * devices} if on_device else {"pid": pid, "tid": pid}))
    return kb.write(folder / "all.json", kb.trace(events, rank=None))


def test_ranks_merged_into_one_file_are_told_apart_by_process_and_device(tmp_path: Path) -> None:
    trace = open_trace(merged(tmp_path, devices=True), cache=tmp_path / "cache")
    assert (trace.job.ranks, trace.steps, trace.job.operations) == ((0, 1, 2), (2, 3), 3 * 28 + 1)
    (told,) = [warning.message for warning in trace.job.warnings]
    assert told == "all.json holds 3 processes; in the order of their numbers they count as rank 0-2"
    ops = load_step(trace, 2)
    assert [int(ops.on_stream[ops.rank == rank].sum()) for rank in range(3)] == [5, 5, 5]
    (only,) = [code for code, text in ops.name_text.items() if text == "aten::only_here"]
    assert ops.rank[ops.name == only].tolist() == [1]
    # Each has one device, whose streams need not say which.
    assert set(ops.lane_text.values()) == {"stream 7", "stream 20", "thread 71", "thread 72", "thread 90"}


def test_merged_ranks_whose_kernels_are_on_one_device_are_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"all\.json holds the recordings of 3 processes merged into one, and does not"
    ):
        open_trace(merged(tmp_path, devices=False), cache=tmp_path / "cache")


def test_events_without_a_category_are_not_taken_for_operators(tmp_path: Path) -> None:
    bare = [{**event, "cat": ""} for event in kb.training_steps(2)]
    file = kb.write(tmp_path / "ascend.json", kb.trace(bare))
    with pytest.raises(InputError, match="no event has a category"):
        open_trace(file, cache=tmp_path / "cache")


def test_a_few_events_without_a_category_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{**kb.op("AIV kernel", 10_050 + at, 500), "cat": ""} for at in range(3)]
    file = kb.write(tmp_path / "mixed.json", kb.trace([*kb.training_steps(2), *rows]))
    job = open_trace(file, cache=tmp_path / "cache").job
    assert job.operations == 28
    (told,) = [warning.message for warning in job.warnings if warning.code == "no_category"]
    assert told == "3 events of mixed.json have no category (cat) and are left out"
