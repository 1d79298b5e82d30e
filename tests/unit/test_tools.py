"""The scripts of benchmarks/ and validation/ import what is there: nothing else runs most of them."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.places import ROOT

SCRIPTS = [path for folder in ("benchmarks", "validation") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kair"):
            module = import_module(node.module or "")
            for name in node.names:
                part = f"{module.__name__}.{name.name}"
                is_there = hasattr(module, name.name) or (hasattr(module, "__path__") and find_spec(part) is not None)
                assert is_there, f"{script.name} imports {part}"
