"""What a program says of itself: its text, its docstrings, and where it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import FunctionType

import dagster as dg

from weir.orchestration.supervised import Supervised
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.topology.nodes import AggregateNode, Node, SourceNode, TableSinkNode

CODE = "dagster/code_references"


def about(supervised: Supervised) -> str:
    """The docstring of the program's module, up to its first empty line; empty if it has none."""
    module = sys.modules.get(supervised.reference.partition(":")[0])
    return first_paragraph(module.__doc__ if module else None)


def about_topic(source: SourceNode) -> str:
    """The docstring of the class of a topic's values; empty if it has none of its own."""
    kind = getattr(source.value_serde, "cls", None)
    text = first_paragraph(getattr(kind, "__doc__", None))
    return "" if kind is None or text.startswith(f"{kind.__name__}(") else text  # which dataclasses write themselves


def about_output(sink: TableSinkNode) -> str:
    """The docstring of the function that has made an output's rows, if one has since they were grouped or read."""
    for node in _upwards(sink):
        for function in _functions(node):
            if text := first_paragraph(function.__doc__):
                return text
    return ""


def code_of(supervised: Supervised) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Where the program is, for Dagster's link to it: the file of its module, and the line that assigns the
    application; nothing if its file is not known here."""
    name, _, attribute = supervised.reference.partition(":")
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not Path(file).is_file():
        return {}
    found = re.search(rf"^{re.escape(attribute)}\b.*=", Path(file).read_text(errors="replace"), re.MULTILINE)
    line = found.string.count("\n", 0, found.start()) + 1 if found else 1
    reference = dg.LocalFileCodeReference(file_path=file, line_number=line, label=supervised.reference)
    return {CODE: dg.CodeReferencesMetadataValue(code_references=[reference])}


def first_paragraph(text: str | None) -> str:
    """On one line."""
    return " ".join(re.split(r"\n\s*\n", (text or "").strip())[0].split())


def _upwards(sink: TableSinkNode) -> Iterator[Node]:
    node: Node = sink
    while node.parents and not isinstance(node := node.parents[0], AggregateNode):
        yield node


def _functions(node: Node) -> Iterator[FunctionType]:
    """Those of the program that a node calls."""
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, UserFunction) and isinstance(value.call, FunctionType):
            yield value.call
