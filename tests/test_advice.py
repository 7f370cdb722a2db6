"""Every command that a message names can be typed as it stands: it exists, with its options and all its arguments."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from weir.pipelines.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
COMMAND = re.compile(r"`(weir [^`]+)`")


def texts(tree: ast.AST):
    """The line and text of each string outside of docstrings; what is put in becomes ``x``."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(each.value) if isinstance(each, ast.Constant) else "x" for each in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def commands(tree: ast.AST) -> list[tuple[int, str]]:
    return [(line, found) for line, text in texts(tree) for found in COMMAND.findall(text)]


def fault(command: str) -> str | None:
    """What is wrong with a command line, as the command line itself would say."""
    name, *arguments = shlex.split(command)
    found = get_command(app)
    while hasattr(found, "commands") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        if name not in found.commands:
            return f"no command {name!r}"
        found = found.commands[name]
    if hasattr(found, "commands"):
        return None if arguments else "no command"
    try:
        found.make_context(name, arguments).close()
    except Exception as error:
        return getattr(error, "message", "") or f"{type(error).__name__} {error}"
    return None


def test_commands_in_messages_are_complete():
    faults = []
    for package in ("infra", "orchestration", "pipelines", "state"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, command in commands(ast.parse(path.read_text())):
                if wrong := fault(command):
                    faults.append(f"{path.relative_to(ROOT)}:{line}: `{command}`: {wrong}")
    assert faults == []


@pytest.mark.parametrize(
    ("code", "is_complete"),
    [
        ("raise E('stop it with `weir stop shop`')", True),
        ("raise E(f'stop it with `weir stop {self.id} '\n'--drain`')", True),
        ("raise E('start with `weir run MODULE:APP`')", True),
        ("raise E(f'accept with `weir run --accept-state-loss`')", False),
        ("raise E('see `weir logs`')", False),
        ("raise E('`weir stop shop --now`')", False),
        ("raise E('`weir strop shop`')", False),
        ("raise E('`weir kafka remove x`')", False),
    ],
)
def test_an_incomplete_command_is_found(code, is_complete):
    ((_, command),) = commands(ast.parse(code))
    assert (fault(command) is None) == is_complete


def test_a_command_in_a_docstring_is_no_advice():
    assert commands(ast.parse('def f():\n    """Like `weir run`."""')) == []
