"""`make wheelhouse` is installed, and answers, where there is no network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT, SAMPLES

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]
LEFT_OUT = shutil.ignore_patterns(".*", "tests", "validation", "benchmarks", "sample_traces", "dist", "__pycache__")
ALONE = ("unshare", "--map-root-user", "--net")
"""Runs a command in a network of its own, which reaches nobody."""


def _run(*command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "KAIR_TEST_RELEASE" not in os.environ:
        pytest.skip("it fetches 164 MB of wheels: `make release` runs it, which sets KAIR_TEST_RELEASE")
    folder = tmp_path_factory.mktemp("offline")
    if _run(*ALONE, "true", cwd=folder).returncode:
        pytest.skip("no network of one's own can be made here")
    index = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder / "index"))
    if _run(*index, "hatchling", cwd=folder).returncode:
        pytest.skip("there is no package index to take the wheels from")
    checkout = shutil.copytree(ROOT, folder / "checkout", ignore=LEFT_OUT)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    made = _run("make", "wheelhouse", f"PYTHON={sys.executable}", f"TARGET_PYTHON={version}", cwd=checkout)
    assert made.returncode == 0, made.stderr
    (archive,) = (checkout / "dist").glob("kair-wheelhouse-*.tar")
    shutil.unpack_archive(archive, folder / "carried", filter="data")
    (carried,) = (folder / "carried").iterdir()
    return carried


def test_it_is_installed_and_answers_without_a_network(wheelhouse: Path, tmp_path: Path) -> None:
    probe = "import socket; socket.create_connection(('127.0.0.1', 80), 2)"
    assert "unreachable" in _run(*ALONE, sys.executable, "-c", probe, cwd=tmp_path).stderr, "there is a network"
    place = tmp_path / "kair"
    installed = _run(
        *ALONE, "env", f"PYTHON={sys.executable}", "sh", str(wheelhouse / "install.sh"), str(place), cwd=tmp_path
    )
    assert installed.returncode == 0, installed.stderr
    own = ("env", "-i", f"HOME={tmp_path}", f"KAIR_CACHE={tmp_path / 'cache'}", str(place / "bin" / "kair"))
    answered = _run(*ALONE, *own, "triage", str(SAMPLES / "slow_operator"), cwd=tmp_path)
    assert (answered.returncode, answered.stderr) == (0, "")
    assert answered.stdout.startswith("straggler: rank 2")


def test_a_wheel_that_was_changed_on_the_way_is_not_installed(wheelhouse: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(wheelhouse, tmp_path / "carried")
    with next(changed.glob("kair-*.whl")).open("ab") as wheel:
        wheel.write(b"\0")
    ran = _run("sh", str(changed / "install.sh"), str(tmp_path / "kair"), cwd=tmp_path)
    assert ran.returncode and not (tmp_path / "kair").exists()
