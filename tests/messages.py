"""The texts of Weir's modules, and the commands that they advise."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = re.compile(r"`(weir [^`]+)`")


@cache
def modules() -> dict[str, ast.Module]:
    paths = [
        path for package in ("infra", "orchestration", "pipelines", "state") for path in (ROOT / package).rglob("*.py")
    ]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(paths)}


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and text of each string outside of docstrings; what is put in becomes ``x``, a number (``:d``)
    ``1``."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(each.value) if isinstance(each, ast.Constant) else put_in(each) for each in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def put_in(value: ast.expr) -> str:
    return "1" if ast.unparse(getattr(value, "format_spec", None) or ast.Constant("")) == "f'd'" else "x"


def commands(tree: ast.AST) -> list[tuple[int, str]]:
    return [(line, found) for line, text in texts(tree) for found in COMMAND.findall(text)]
