"""Steps that take more memory than there is are refused before any of it is taken."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.answers import recorded
from support.cli_samples import kair
from support.places import SAMPLES

from kair_engine.errors import InputError
from kair_engine.trace import batches as memory_limit
from kair_engine.trace.batches import limit_memory, operations_of_steps, require_memory

JOB = SAMPLES / "slow_input"


@pytest.fixture(autouse=True)
def whatever_there_is() -> Iterator[None]:
    yield
    limit_memory(None)


@pytest.mark.slow
def test_commands_that_hold_a_step_whole_say_what_it_takes_and_who_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAIR_MAX_MEMORY", "100K")
    job, out = str(JOB), str(tmp_path / "job.pftrace")
    asked = (
        ["rank", job, "--rank", "0"],
        ["timeline", job, "--step", "5"],
        ["whatif", job],
        ["export", job, "-o", out],
    )
    for command in asked:
        refused = kair(*command)
        error, hint = [line for line in refused.err.splitlines() if line.startswith(("kair: error", "hint"))]
        assert refused.status == 3
        assert "operations: to hold them takes" in error and error.endswith(" of memory")
        assert hint.startswith("hint: triage, localize, ") and "$KAIR_MAX_MEMORY" in hint
    assert not Path(out).exists()
    monkeypatch.setenv("KAIR_MAX_MEMORY", "plenty")
    assert kair("rank", job, "--rank", "0").status == 2
    monkeypatch.delenv("KAIR_MAX_MEMORY")
    assert kair("rank", job, "--rank", "0").status == 0


@pytest.mark.slow
def test_what_there_is_is_what_the_machine_and_all_control_groups_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded(JOB)
    needed = max(operations_of_steps(trace).values()) * memory_limit.WHOLE
    monkeypatch.setattr(memory_limit, "_NOTHING", 0)
    monkeypatch.setattr(memory_limit, "_SYSTEM", tmp_path / "meminfo")
    monkeypatch.setattr(memory_limit, "_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory_limit, "_GROUPS", tmp_path / "groups")
    require_memory(trace)  # nobody says what there is

    def machine(left: int) -> None:
        (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {left // 1024 + 1} kB\n")

    def group(path: str, names: tuple[str, str, str], most: object, used: int, files: int) -> None:
        folder = tmp_path / "groups" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names[0]).write_text(f"{most}\n")
        (folder / names[1]).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {files}\n")

    machine(needed)
    require_memory(trace)
    new = ("memory.max", "memory.current", "inactive_file")
    (tmp_path / "cgroup").write_text("0::/job/step\n")
    group("job/step", new, "max", 10**15, 0)
    group("job", new, needed + 1000, 1500, 500)
    require_memory(trace)
    group("job", new, needed + 1000, 1500, 499)
    with pytest.raises(InputError, match="operations: to hold them takes"):
        require_memory(trace)
    (tmp_path / "cgroup").write_text("4:cpu,memory:/old\n1:cpu:/job\n")
    require_memory(trace)
    group("memory/old", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), needed, 1, 0)
    with pytest.raises(InputError):
        require_memory(trace)
    (tmp_path / "cgroup").unlink()
    machine(needed - 2048)
    with pytest.raises(InputError):
        require_memory(trace)
