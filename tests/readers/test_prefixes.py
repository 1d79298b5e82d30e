"""Prefixes of a log's lines: what launchers, schedulers and containers put there, alone and nested."""

import pytest

from kair_engine.readers.prefixes import Peeled, ProcessRanks, peel, plain

LINE = "iteration 5/ 10 | x"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (LINE, Peeled(LINE)),
        (f"[rank3]: {LINE}", Peeled(LINE, rank=3)),
        (f"[rank3]:{LINE}", Peeled(LINE, rank=3)),
        (f"[default3]: {LINE}", Peeled(LINE, local_rank=3)),
        (f" 12: {LINE}", Peeled(LINE, task=12)),
        (f"1: [default7]:{LINE}", Peeled(LINE, task=1, local_rank=7)),
        (f"(TrainWorker pid=71, ip=10.0.0.2) {LINE}", Peeled(LINE, process="10.0.0.2:71")),
        (f"(RayTrainWorker(rank=0) pid=71) {LINE}", Peeled(LINE, process=":71")),
        (f"(TrainWorker pid=71) {LINE} [repeated 7x across cluster]", Peeled(LINE, process=":71", repeated=7)),
        (f"[pod/job-0/pytorch] [rank1]: {LINE}", Peeled(LINE, process="job-0/pytorch", rank=1)),
        (f"2026-01-01T00:00:00.5Z [rank1]: {LINE}", Peeled(LINE, rank=1)),
        ("[2026-01-01 00:00:00] plain", Peeled("[2026-01-01 00:00:00] plain")),
        ("[INFO]: no rank", Peeled("[INFO]: no rank")),
    ],
)
def test_peels(line: str, expected: Peeled) -> None:
    assert peel(line) == expected


def test_plain_unpacks_containers_and_colours() -> None:
    docker = rb'{"log":"\u001b[32mloss \"1\"\u001b[0m\r 2%\n","stream":"stderr","time":"2026-01-01T00:00:00.1Z"}'
    assert plain(docker + b"\n") == b'loss "1"\n 2%\n'
    spaced = rb'{"level": "error", "message": "step 3"}'
    assert plain(spaced + b"\n" + b"{'loss': 1.0}\n") == b"step 3\n{'loss': 1.0}\n"
    kubelet = b"2026-01-01T00:00:00.123456789Z stdout P begin, \n2026-01-01T00:00:00.2Z stdout F end\n"
    assert plain(kubelet) == b"begin, end\n"
    assert plain(b"\x1b[1;31mred\x1b[0m\r\n") == b"red\n\n"
    assert plain(b"nothing to do\n") == b"nothing to do\n"


def test_ranks_of_processes() -> None:
    ranks = ProcessRanks()
    ranks.learn(b"- (node_id=x, ip=10.0.0.2, pid=71) world_rank=5, local_rank=1\n")
    ranks.learn(b"- (ip=10.0.0.2, pid=72) world_rank=6, local_rank=2\n")
    assert [ranks.key(peel(f"(W pid={pid}, ip=10.0.0.2) x")) for pid in (71, 72)] == [5, 6]
    assert ranks.key(peel("(W pid=9, ip=10.0.0.2) x")) == -1
    keys = [ranks.key(peel(f"{task}: [default{local}]: x")) for task in (0, 1) for local in (0, 3)]
    assert [ranks.rank(key) for key in keys] == [0, 3, 4, 7]
    assert ranks.is_sure
    assert not (alone := ProcessRanks()).key(peel("[default3]: x")) < 0
    assert not alone.is_sure
