"""The files for Slurm, Kubernetes and systemd: their scripts run, with stand-ins for what schedulers do themselves."""

import configparser
import os
import pwd
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.patience import PATIENCE_S

from kair_capture.agent.agent import agent_settings
from kair_capture.coordinator.step_log import read_all
from kair_capture.job.recorder import MOST_RINGS
from kair_capture.places import DEFAULT_PORT, JobPlaces
from kair_capture.ring import ring_bytes
from kair_capture.settings import settings_of
from kair_tui.cli.app import parse
from kair_tui.cli.registry import find

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SLURM = DEPLOY / "slurm"
UNIT = DEPLOY / "systemd" / "kair-coordinator@.service"
SCRIPTS = (*sorted(SLURM.glob("*.sh")), SLURM / "train.sbatch", SLURM / "kair.conf")
KAIR = Path(sys.executable).with_name("kair")
STEPS, RANKS = 40, 2
JOB = [sys.executable, str(ROOT / "benchmarks" / "capture" / "simulated_job.py"), "--ranks", f"0-{RANKS - 1}"]
JOB += ["--world", str(RANKS), "--steps", str(STEPS), "--step-ms", "5"]


# Scripts.


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_one_for_bash_and_nothing_is_found_in_it(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    checker = Path(sys.executable).with_name("shellcheck")
    told = subprocess.run([checker, "-x", "-P", "SCRIPTDIR", script], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout
    assert os.access(script, os.X_OK) == (script.name != "kair.conf")


def commands() -> Iterator[list[str]]:
    """Every command line of Kair that a file there has, as words."""
    texts = [path.read_text() for path in SCRIPTS] + [UNIT.read_text(), (DEPLOY / "README.md").read_text()]
    texts += [*containers()["train"]["args"]]
    for text in texts:
        joined = text.replace("\\\n", " ")
        found = re.findall(r"^(?:ExecStart=\S*/|\s*)kair ((?:capture|coordinator|triage) .*)$", joined, re.MULTILINE)
        yield from (shlex.split(line, comments=True) for line in found)
    coordinator = containers()["coordinator"]
    yield [*coordinator["command"][1:], *coordinator["args"]]


def test_each_command_there_is_one_of_kair_s() -> None:
    told = [(words[0], parse_of(words)) for words in commands()]
    assert [name for name, _ in told].count("coordinator") == 3
    assert {name for name, _ in told} == {"coordinator", "capture", "triage"}
    assert {next(iter(one["command"])) for name, one in told if name == "capture"} == {"$@", "torchrun"}
    ports = {one["listen"].rpartition(":")[2] for name, one in told if name == "coordinator"}
    assert ports == {"0", "${LISTEN}", str(DEFAULT_PORT)}


def parse_of(words: list[str]) -> dict[str, Any]:
    """The arguments, as the command line reads them; it ends the process with a word of blame where it cannot."""
    entry = find(words[0])
    assert entry is not None
    return parse(entry, [word for word in words[1:] if word != "&"])


# Slurm.


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    """The environment of a node's scripts, in a folder that has everything: copies, stand-ins, the store."""
    programs = tmp_path / "bin"
    programs.mkdir()
    until = "until [[ -e"
    for name, text in {
        "scontrol": 'printf "%s\\n" node-1 node-2',
        # Both take longer than a coordinator, or an agent, to start.
        "srun": f"{until} $KAIR_STORE/slurm-42/capture/coordinator.json ]]; do sleep 0.05; done\n"
        'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "torchrun": f"{until} $KAIR_RUN_DIR/agent.lock ]]; do sleep 0.05; done\n{shlex.join(JOB)}; exit 7",
        "kair": f'exec {shlex.join([str(KAIR)])} "$@"',
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    for path in SLURM.iterdir():
        shutil.copy2(path, tmp_path)
    path = f"{programs}:{os.environ['PATH']}"
    with (tmp_path / "kair.conf").open("a") as file:
        file.write(f"PATH={path}\nKAIR={programs}/kair\nSTORE={tmp_path}/store\nSTATE={tmp_path}/state\n")
        file.write("LISTEN=127.0.0.1:0\n")
    return {
        "PATH": path,
        "HOME": str(tmp_path),
        "KAIR_STORE": f"{tmp_path}/store",
        "KAIR_RUN_DIR": f"{tmp_path}/run",
        "KAIR_SPOOL_DIR": f"{tmp_path}/spool",
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_COMMENT": "big,kair",
        "SLURM_JOB_NODELIST": "node-[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURMD_NODENAME": "node-1",
    }


def run(script: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    # In a process group, of which Slurm ends what is left.
    with subprocess.Popen(
        [script], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
    ) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess([str(script)], process.returncode, out)


@pytest.mark.slow
def test_the_prolog_starts_a_coordinator_and_the_epilog_ends_it(node: dict[str, str], tmp_path: Path) -> None:
    places = JobPlaces(tmp_path / "store", "slurm-42")
    assert run(tmp_path / "prolog.sh", node).returncode == 0
    process = int((tmp_path / "state" / "slurm-42.pid").read_text())
    handle = os.pidfd_open(process)
    log = tmp_path / "state" / "slurm-42.log"
    try:
        # It says where it is once it can be stopped in order.
        with subprocess.Popen(
            ["tail", f"--pid={process}", "-n", "+1", "-f", log], stdout=subprocess.PIPE, text=True
        ) as following:
            assert following.stdout is not None
            assert any("coordinator of job slurm-42 at 127.0.0.1:" in line for line in following.stdout)
            following.kill()
        assert places.address.exists()
        # Of another job nothing is ended.
        assert run(tmp_path / "epilog.sh", {**node, "SLURM_JOB_ID": "4"}).returncode == 0
        assert not select.select([handle], [], [], 0)[0]
        assert run(tmp_path / "epilog.sh", node).returncode == 0
        assert select.select([handle], [], [], PATIENCE_S)[0]
    finally:
        if not select.select([handle], [], [], 0)[0]:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    assert not places.address.exists()  # it ended in order
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["slurm-42.log"]
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "otherwise",
    [
        {"SLURM_JOB_COMMENT": "kairos"},
        {"SLURM_JOB_COMMENT": ""},
        {"SLURMD_NODENAME": "node-2"},
    ],
)
def test_other_jobs_and_nodes_have_no_coordinator(
    otherwise: dict[str, str], node: dict[str, str], tmp_path: Path
) -> None:
    assert run(tmp_path / "prolog.sh", node | otherwise).returncode == 0
    assert run(tmp_path / "epilog.sh", node | otherwise).returncode == 0
    assert not (tmp_path / "state").exists()


def test_whatever_fails_the_node_is_not_drained_and_nobody_else_s_process_is_ended(
    node: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "bin" / "kair").unlink()
    assert run(tmp_path / "prolog.sh", node).returncode == 0
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:  # its number is the coordinator's of before
        (tmp_path / "state" / "slurm-42.pid").write_text(f"{other.pid}\n")
        assert run(tmp_path / "epilog.sh", node).returncode == 0
        assert other.poll() is None
    (tmp_path / "kair.conf").unlink()
    assert run(tmp_path / "prolog.sh", node).returncode == 0
    assert run(tmp_path / "epilog.sh", node).returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes somebody else")
def test_the_coordinator_is_the_job_s_user_s(node: dict[str, str], tmp_path: Path) -> None:
    user = pwd.getpwnam("nobody")
    # Where others may go, as they may not into a folder of pytest's.
    with tempfile.TemporaryDirectory() as folder:
        kair = Path(folder) / "kair"
        kair.write_text('#!/bin/bash\nid -u; id -g; id -G; echo "$HOME" "$KAIR_STORE" "$@"\n')
        for path in (kair.parent, kair):
            path.chmod(0o755)
        with (tmp_path / "kair.conf").open("a") as file:
            file.write(f"KAIR={kair}\n")
        assert run(tmp_path / "prolog.sh", {**node, "SLURM_JOB_UID": str(user.pw_uid)}).returncode == 0
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(int((tmp_path / "state" / "slurm-42.pid").read_text()))
            assert select.select([handle], [], [], PATIENCE_S)[0]
            os.close(handle)
    assert (tmp_path / "state" / "slurm-42.log").read_text().splitlines() == [
        str(user.pw_uid),
        str(user.pw_gid),
        str(user.pw_gid),
        f"{user.pw_dir} {tmp_path}/store coordinator --job slurm-42 --listen 127.0.0.1:0",
    ]


def steps_of(store: Path, job: str) -> int:
    return len(read_all(JobPlaces(store, job).steps))


@pytest.mark.slow
def test_the_batch_script_trains_under_watch_and_ends_as_training_does(node: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    # The name of the machine that tests run on may lead nowhere.
    script.write_text(script.read_text().replace("0.0.0.0:0", "127.0.0.1:0"))
    told = run(script, node)
    assert told.returncode == 7, told.stdout
    assert "kair: capturing job slurm-42" in told.stdout
    # Also the last ones, which the agent delivers when training is over.
    assert steps_of(tmp_path / "store", "slurm-42") == STEPS * RANKS, told.stdout


# Kubernetes.


@cache
def manifests() -> list[dict[str, Any]]:
    return [
        one for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
    ]


@cache
def pods() -> dict[str, dict[str, Any]]:
    """Name → the pod of a workload."""
    return {
        one["metadata"]["name"]: one["spec"]["template"] for one in manifests() if one["kind"] in ("Deployment", "Job")
    }


@cache
def containers() -> dict[str, dict[str, Any]]:
    """Name → container, but for those that only copy the key."""
    return {one["name"]: one for pod in pods().values() for one in pod["spec"]["containers"]}


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "from elsewhere") for one in container["env"]}


def test_manifests_are_what_kubernetes_takes() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="the schemas, 22 MB, are no part of the tests")
    for one in manifests():
        validator.validate(one, validator.latest_version(), strict=True)


@pytest.mark.parametrize("name", ["kair-coordinator", "train"])
def test_what_a_pod_mounts_it_has_and_it_is_nobody_special(name: str) -> None:
    pod = pods()[name]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pods()["train"]["spec"]["securityContext"]["runAsUser"] > 0
    volumes = {one["name"] for one in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {one["name"] for one in container["volumeMounts"]} <= volumes
    assert {one["name"] for c in (*pod["initContainers"], *pod["containers"]) for one in c["volumeMounts"]} == volumes


def test_agents_find_the_coordinator_where_the_service_is() -> None:
    services = {one["metadata"]["name"]: one["spec"] for one in manifests() if one["kind"] == "Service"}
    service, coordinator = services["kair-coordinator"], containers()["coordinator"]
    named = {one["name"]: (one["protocol"], one["containerPort"]) for one in coordinator["ports"]}
    assert named["agents"] == ("UDP", DEFAULT_PORT)
    asked = parse_of([*coordinator["command"][1:], *coordinator["args"]])
    assert {asked["listen"], asked["metrics"]} == {f"0.0.0.0:{port}" for _, port in named.values()}
    assert {(one["protocol"], one["port"]) for one in service["ports"]} == set(named.values())
    assert {one["targetPort"] for one in service["ports"]} == set(named)
    for of, pod in (("kair-coordinator", "kair-coordinator"), ("train", "train")):
        assert services[of]["selector"].items() <= pods()[pod]["metadata"]["labels"].items()
    training = environment_of(containers()["train"])
    agent = agent_settings(training)
    assert agent.coordinator == ("kair-coordinator", DEFAULT_PORT)
    assert agent.key_file == asked["key"]
    assert (agent.job, str(agent.places.store)) == (environment_of(coordinator)["KAIR_JOB"], "/store")
    assert environment_of(coordinator)["KAIR_STORE"] == training["KAIR_STORE"]


def test_each_variable_there_is_one_that_kair_reads() -> None:
    named = {name for one in containers().values() for name in environment_of(one)}
    named |= set(re.findall(r"\bKAIR_[A-Z_]+\b", UNIT.read_text() + "".join(path.read_text() for path in SCRIPTS)))
    code = "".join(path.read_text() for room in ("capture", "kair_tui") for path in (ROOT / room).rglob("*.py"))
    assert {name for name in named if f'"{name}"' not in code} == set()


def test_shared_memory_has_room_for_the_rings_of_8_ranks_and_is_within_the_container_s_memory() -> None:
    volume = next(one for one in pods()["train"]["spec"]["volumes"] if one["name"] == "shm")["emptyDir"]
    assert volume["medium"] == "Memory"
    rings = 8 * MOST_RINGS * ring_bytes(settings_of({}).ring_records)
    training = containers()["train"]
    assert 64 << 20 < rings < gibibytes(volume["sizeLimit"]) < gibibytes(training["resources"]["limits"]["memory"])
    assert {one["name"]: one["mountPath"] for one in training["volumeMounts"]}["shm"] == "/dev/shm"
    assert environment_of(training)["KAIR_RUN_DIR"].startswith("/dev/shm/")


def gibibytes(text: str) -> int:
    assert text.endswith("Gi")
    return int(text.removesuffix("Gi")) << 30


@pytest.mark.slow
def test_the_training_container_ends_as_training_does_once_everything_is_delivered(
    node: dict[str, str], tmp_path: Path
) -> None:
    training = containers()["train"]
    own = {name: value for name, value in node.items() if not name.startswith("SLURM")}
    environment = own | {"KAIR_JOB": environment_of(training)["KAIR_JOB"], "JOB_COMPLETION_INDEX": "0"}
    listening = ["coordinator", "--listen", "127.0.0.1:0", "--leave-after", "1"]
    with subprocess.Popen([KAIR, *listening], env=environment, stderr=subprocess.PIPE, text=True) as coordinator:
        assert coordinator.stderr is not None
        assert any("coordinator of job" in line for line in coordinator.stderr)
        script = tmp_path / "container"
        script.write_text(f"#!/bin/{training['command'][0]}\n{training['args'][0]}")
        script.chmod(0o755)
        told = run(script, environment)
        coordinator.terminate()
    assert told.returncode == 7, told.stdout
    assert steps_of(tmp_path / "store", "train") == STEPS * RANKS, told.stdout


def test_a_pod_that_is_to_end_tells_training(node: dict[str, str], tmp_path: Path) -> None:
    # It is ready once the shell that started it waits for it, and so knows whom to hand the signal on to.
    (tmp_path / "bin" / "kair").write_text(
        '#!/bin/bash\nsleep 600 > /dev/null &\ntrap "kill $!; echo checkpoint; exit 5" TERM\n'
        "until read -r _ _ state _ < /proc/$PPID/stat; [ $state = S ]; do :; done\necho ready\nwait\n"
    )
    shell, argument = containers()["train"]["command"]
    environment = {**node, "JOB_COMPLETION_INDEX": "0"}
    with subprocess.Popen(
        [shell, argument, *containers()["train"]["args"]], env=environment, stdout=subprocess.PIPE, text=True
    ) as pod:
        assert pod.stdout is not None
        assert pod.stdout.readline() == "ready\n"
        pod.terminate()
        assert pod.stdout.read() == "checkpoint\n"
    assert pod.returncode == 5


# systemd.


def unit() -> configparser.SectionProxy:
    """The service, where a key stands more than once its last value."""
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read(UNIT)
    return read["Service"]


def test_the_unit_runs_the_coordinator_with_what_its_environment_says() -> None:
    service = unit()
    assigned = dict(one.split("=", 1) for one in re.findall(r"^Environment=(.*)$", UNIT.read_text(), re.MULTILINE))
    line = re.sub(r"\$\{(\w+)\}", lambda match: assigned[match[1]], service["ExecStart"]).replace("%i", "job123")
    _, *words = shlex.split(line)
    asked = parse_of(words)
    assert (asked["job"], asked["listen"]) == ("job123", f"0.0.0.0:{DEFAULT_PORT}")
    # What it may write is what it writes.
    assert assigned["KAIR_STORE"].startswith(f"/var/lib/{service['StateDirectory']}/")
    assert assigned["KAIR_CACHE"] == f"/var/cache/{service['CacheDirectory']}"
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["User"]) == ("yes", "strict", "kair")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "kair-coordinator@job123.service"
    copy.write_text(UNIT.read_text().replace("/opt/kair/bin/kair", str(KAIR)))
    told = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
