"""Counts lines of code by folder: without blanks, comments, docstrings and imports.

python benchmarks/code_lines.py
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("kair_tui", "engine", "capture", "mitigate")
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Return how many lines of a module's `text` hold code."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if (is_text or isinstance(node, ast.Import | ast.ImportFrom)) and isinstance(node, ast.stmt):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main() -> None:
    """Print the lines and modules of each folder that git tracks, and of the product."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines, modules = Counter[str](), Counter[str]()
    for name in listed.split():
        folder = name.split("/")[0]
        found = code_lines((ROOT / name).read_text(encoding="utf-8"))
        for counted in (folder, *(["product"] if folder in PRODUCT else [])):
            lines[counted] += found
            modules[counted] += 1
    for folder, count in lines.most_common():
        print(f"{folder}: {count:,} lines in {modules[folder]} modules")


if __name__ == "__main__":
    main()
