"""Who ranks are, in `kair info`: software that all share, what differs, and the devices of each host."""

from pathlib import Path

import pytest
from support.kineto_builder import trace, training_steps, write

from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_tui.cli.main import main
from kair_tui.render.identities import identity_facts

UUID = "GPU-5f3e0000-1111-2222-3333-444444444444"


def of(rank: int, **known: object) -> RankIdentity:
    return RankIdentity(**{"rank": rank, "host": f"node-{rank // 2}", **known})  # type: ignore[arg-type]


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert identity_facts([]) == []
    assert identity_facts([of(0, pid=4711)]) == []


def test_software_that_all_share_is_on_one_line_and_the_odd_one_out_on_another() -> None:
    versions = {"nccl": "2.27.3", "framework": "torch 2.13.0", "driver": "570.86"}
    some = [of(rank, versions={**versions, "driver": "535.1"} if rank == 3 else versions) for rank in range(4)]
    assert identity_facts(some[:3]) == [("software", ["torch 2.13.0, NCCL 2.27.3, driver 570.86"])]
    assert identity_facts(some) == [
        ("software", ["torch 2.13.0, NCCL 2.27.3"]),
        ("", ["differs: driver 570.86 on ranks 0-2; driver 535.1 on rank 3"]),
    ]


def test_the_environment_is_counted() -> None:
    same = [of(rank, environment={"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8"}) for rank in range(2)]
    assert identity_facts(same) == [("environment", ["2 variables, the same on all ranks"])]
    odd = of(2, environment={"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"})
    assert identity_facts([*same, odd]) == [("environment", ["3 variables, 2 of them not the same on all ranks"])]
    assert identity_facts(same[:1]) == [("environment", ["2 variables"])]


def test_what_all_are_part_of_is_named_and_the_rest_is_counted() -> None:
    some = [of(rank, scheduled=("job:4711", f"pod:ml/train-{rank // 2}")) for rank in range(4)]
    assert identity_facts(some) == [("scheduler", ["job 4711, 2 pods"])]
    assert identity_facts(some[:2]) == [("scheduler", ["job 4711, pod ml/train-0"])]


def test_devices_are_listed_by_host_with_whole_uuids() -> None:
    some = [
        of(rank, device=DeviceIdentity(UUID, f"0000:{rank:02x}:00.0", index=rank % 2, ordinal=0, model="NVIDIA H100"))
        for rank in range(3)
    ]
    assert identity_facts(some) == [
        (
            "devices",
            [
                f"node-0: rank 0 GPU 0, {UUID}, 0000:00:00.0, NVIDIA H100",
                f"node-0: rank 1 GPU 1, {UUID}, 0000:01:00.0, NVIDIA H100",
                f"node-1: rank 2 GPU 0, {UUID}, 0000:02:00.0, NVIDIA H100",
            ],
        )
    ]


@pytest.mark.parametrize(
    ("ordinals", "told"),
    [
        ((0, 1, 2, 3), " (0-3 as their processes count)"),
        ((0, 0, 0, 0), " (0 as their processes count)"),
        ((1, 3, 0, 2), " (1, 3, 0, 2 as their processes count)"),
        ((0, None, 2, 3), ""),
    ],
)
def test_devices_that_cannot_be_looked_up_are_one_line(ordinals: tuple[int | None, ...], told: str) -> None:
    some = [
        RankIdentity(rank, device=DeviceIdentity(ordinal=ordinal, model="NVIDIA H100"))
        for rank, ordinal in enumerate(ordinals)
    ]
    assert identity_facts(some) == [("devices", [f"ranks 0-3 NVIDIA H100{told}"])]


def test_info_says_it_and_does_not_interpret_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    properties = [{"id": 0, "name": "H100\x1b[31m [red]"}]
    for rank in range(20):
        content = trace(
            training_steps(2), rank=rank, world=20, deviceProperties=properties, host_name=f"node-{rank}",
            cuda_runtime_version=12040,
        )  # fmt: skip
        write(tmp_path / "job" / f"rank{rank}.json", content)
    assert main(["info", str(tmp_path / "job")]) == 0
    text = capsys.readouterr().out
    assert "software      CUDA 12.4\n" in text
    assert "devices       node-0: rank 0 H100␛[31m [red] (0 as its process counts)\n" in text
    after = text.partition("devices ")[2].splitlines()
    assert after[15].strip().startswith("node-15: ")
    assert after[16].strip() == "… and 4 more"
