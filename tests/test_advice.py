"""Every command that a message names can be typed as it stands: it exists, with its options and all its arguments.
Every way out that a refusal offers has a test that takes it (``tests/ways_out.py``)."""

import ast
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from tests.messages import COMMAND, ROOT, commands, modules, texts
from tests.ways_out import NO_REFUSALS, NO_WAYS_OUT, NOT_RUN, WAYS_OUT
from weir.pipelines.cli.app import app


@cache
def definitions(path: Path) -> set[str]:
    """The functions of a file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@cache
def command_line():
    return get_command(app)


def fault(command: str) -> str | None:
    """What is wrong with a command line, as the command line itself would say."""
    name, *arguments = shlex.split(command)
    found = command_line()
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
    for path, tree in modules().items():
        for line, command in commands(tree):
            if wrong := fault(command):
                faults.append(f"{path}:{line}: `{command}`: {wrong}")
    assert faults == []


def placed(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each text with the function, method or error class that words it; its special methods count as the class."""
    spans = [
        (node.lineno, node.end_lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("__")
    ]
    for line, text in texts(tree):
        yield ".".join(name for first, last, name in sorted(spans) if first <= line <= last), text


@cache
def texts_by_place() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, tree in modules().items():
        for place, text in placed(tree):
            found.setdefault(f"{path} {place}".rstrip(), []).append(text)
    return found


def test_each_command_of_a_refusal_has_a_test_that_runs_it():
    missing = []
    for place, found in texts_by_place().items():
        if place not in NO_REFUSALS:
            known = {*WAYS_OUT.get(place, ()), *NOT_RUN.get(place, ())}
            named = {command.removeprefix("weir ") for text in found for command in COMMAND.findall(text)}
            missing += [f"{place}: `weir {command}`" for command in sorted(named - known)]
    assert missing == [], "enter the test that runs them in tests/ways_out.py"


def test_each_error_with_a_text_of_its_own_is_entered():
    own = {
        f"{path} {node.name}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.name.endswith("Error")
        and any(isinstance(each, ast.FunctionDef) and each.name == "__str__" for each in node.body)
    }
    assert own - {*WAYS_OUT, *NOT_RUN, *NO_WAYS_OUT} == set()
    assert NO_WAYS_OUT - own == set()


@pytest.mark.parametrize("place", sorted({*WAYS_OUT, *NOT_RUN, *NO_REFUSALS}))
def test_what_is_entered_is_in_the_texts(place):
    found = texts_by_place().get(place, [])
    assert found, "there is no such place"
    for words in (*WAYS_OUT.get(place, ()), *NOT_RUN.get(place, ())):
        assert any(words in text for text in found), words


def test_the_tests_of_ways_out_exist():
    for ways in WAYS_OUT.values():
        for test in ways.values():
            path, name = test.split("::")
            assert name in definitions(ROOT / path), test


def test_no_way_out_is_both_run_and_not_run():
    both = {(place, words) for place in WAYS_OUT for words in WAYS_OUT[place] if words in NOT_RUN.get(place, ())}
    assert both == set()


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
        ("raise E(f'`weir kafka create {topic} --partitions {count:d}`')", True),
        ("raise E(f'`weir kafka create {topic} --partitions {count}`')", False),
    ],
)
def test_an_incomplete_command_is_found(code, is_complete):
    ((_, command),) = commands(ast.parse(code))
    assert (fault(command) is None) == is_complete


def test_a_command_in_a_docstring_is_no_advice():
    assert commands(ast.parse('def f():\n    """Like `weir run`."""')) == []
