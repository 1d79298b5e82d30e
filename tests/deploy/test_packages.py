"""What is handed out: a wheel with its documents, whose metadata agrees with what stands around it."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from support.places import ROOT

from kair_engine.readers.kineto.compiled import build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NEEDED = {re.split(r"[<>=;\s]", one)[0] for one in PROJECT["dependencies"]}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("kair-*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_has_every_page_of_the_documents(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    for page in (ROOT / "docs").rglob("*.md"):
        assert f"kair_tui/docs/{page.relative_to(ROOT / 'docs').as_posix()}" in inside


@pytest.mark.slow
def test_the_wheel_has_what_is_no_module(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    for room in ("kair_tui", "engine/kair", "engine/kair_engine", "capture/kair_capture", "mitigate/kair_mitigate"):
        package = ROOT / room
        for path in package.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert path.relative_to(package.parent).as_posix() in inside, path


@pytest.mark.slow
def test_the_wheel_has_the_compiled_scan_of_its_platform(wheel: zipfile.ZipFile) -> None:
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    folder = "kair_engine/readers/kineto/compiled"
    assert f"{folder}/libscan.so" in wheel.namelist()
    assert wheel.filename is not None
    assert not wheel.filename.endswith("-any.whl")


@pytest.mark.slow
def test_installed_pages_are_shown_without_a_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "from kair_tui.cli.main import main; raise SystemExit(main(['help', 'docs/formats.md']))"
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


def test_the_conda_recipe_needs_what_the_wheel_needs() -> None:
    recipe = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    needed = [one.split()[0] for one in recipe["requirements"]["run"] if not one.startswith("python ")]
    assert set(needed) == NEEDED
    assert recipe["requirements"]["run"][1:] == [
        " ".join(re.match(r"([\w-]+)(\S*)", one).groups())  # type: ignore[union-attr]
        for one in PROJECT["dependencies"]
    ]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "kair_tui" / "__init__.py").read_text(encoding="utf-8"))
    assert version is not None
    assert recipe["context"]["version"] == version[1]


def test_the_oldest_releases_are_those_of_the_metadata() -> None:
    pins = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8")
    oldest = dict(re.findall(r"^([\w.-]+)==(\S+)$", pins, re.MULTILINE))
    for one in PROJECT["dependencies"]:
        name, least = re.match(r"([\w-]+)>=([\w.]+)", one).groups()  # type: ignore[union-attr]
        assert oldest[name].startswith(least), name


def test_the_release_workflow_publishes_only_what_was_tested() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("test", "build")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    matrix = jobs["test"]["strategy"]["matrix"]["target"]
    assert {*matrix, "dist"} <= set(targets)
