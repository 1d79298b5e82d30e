"""Who ranks are, in `kair info`: software that all share, what differs, and the devices of each host."""

from pathlib import Path

import pytest
from support.kept_cases import assert_kept
from support.kineto_builder import trace, training_steps, write

from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_tui.cli.main import main
from kair_tui.render.identities import identity_facts

UUID = "GPU-5f3e0000-1111-2222-3333-444444444444"


def of(rank: int, **known: object) -> RankIdentity:
    return RankIdentity(**{"rank": rank, "host": f"node-{rank // 2}", **known})  # type: ignore[arg-type]


VERSIONS = {"nccl": "2.27.3", "framework": "torch 2.13.0", "driver": "570.86"}
ODD = [of(rank, versions={**VERSIONS, "driver": "535.1"} if rank == 3 else VERSIONS) for rank in range(4)]
SET = [of(rank, environment={"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8"}) for rank in range(2)]
OTHER = of(2, environment={"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"})
SCHEDULED = [of(rank, scheduled=("job:4711", f"pod:ml/train-{rank // 2}")) for rank in range(4)]


def device(rank: int) -> DeviceIdentity:
    return DeviceIdentity(UUID, f"0000:{rank:02x}:00.0", index=rank % 2, ordinal=0, model="NVIDIA H100")


def only_counted(*ordinals: int | None) -> list[RankIdentity]:
    """Devices of which no more is known than how their processes count them."""
    known = [DeviceIdentity(ordinal=ordinal, model="NVIDIA H100") for ordinal in ordinals]
    return [RankIdentity(rank, device=one) for rank, one in enumerate(known)]


def test_what_all_share_is_on_one_line_and_the_odd_one_out_on_another() -> None:
    known = {
        "nothing": [],
        "nothing that is told": [of(0, pid=4711)],
        "software that all share": ODD[:3],
        "software of the odd one out": ODD,
        "an environment that all share": SET,
        "an environment that differs": [*SET, OTHER],
        "the environment of one": SET[:1],
        "several pods": SCHEDULED,
        "one pod": SCHEDULED[:2],
        "devices by host, with whole UUIDs": [of(rank, device=device(rank)) for rank in range(3)],
        "devices that are counted from 0": only_counted(0, 1, 2, 3),
        "devices that are all the first": only_counted(0, 0, 0, 0),
        "devices in another order": only_counted(1, 3, 0, 2),
        "a device that is not counted": only_counted(0, None, 2, 3),
    }
    assert_kept("identities", {name: identity_facts(some) for name, some in known.items()})


@pytest.mark.slow
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
