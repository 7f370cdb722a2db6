"""What tells an operator without a name of its own from the others: what it reads, what it does, and what it feeds.

Kafka Streams makes up names with running numbers for such operators, which change with every operator before them. A
lineage does not depend on them: it has names that the program gave, and expressions. Finding a store of another
program by it belongs to ``naming``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import polars as pl

from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.operators.joiner import Joiner
from weir.pipelines.topology.digests import digest
from weir.pipelines.topology.nodes import (
    ExpectNode,
    MergeNode,
    Node,
    PeekNode,
    RepartitionNode,
    SeveralTopicsNode,
    SourceNode,
    TableSinkNode,
)
from weir.pipelines.topology.processors import ProcessorNode
from weir.state.commit.record import Lineage

_MADE_UP = re.compile(r"((?:KSTREAM|KTABLE)-[A-Z-]+)-([0-9]{10})(.*)")
SUPPRESSION = "KTABLE-SUPPRESS-STATE-STORE"
SUBSCRIPTIONS = "KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE"
STANDING_RESULTS = "KTABLE-FK-JOIN-OUTPUT"
FINAL_RESULTS = "KSTREAM-TOTABLE-STATE-STORE"
"""The operators that have stores with made-up names."""
_NUMBERS_BETWEEN = 8
"""How many numbers after its subscriptions' store a join by foreign key has that of its results."""
_LONGEST_TEXT = 200
_ALSO_TEXT = ("kind", "exploded")
"""The fields of nodes that hold text other than names."""
_NOT_SETTINGS = ("children", "others", "place", "record", "names", "keeps_final_results")
_UNLESS_SET = ("restarts", "drops_nulls")
"""Fields that nodes did not have when lineages were first committed: a node without them has the lineage of then."""


def is_made_up(name: str) -> bool:
    """Whether the name of a store or edge has a running number."""
    return _MADE_UP.fullmatch(name) is not None


def operator_of(name: str) -> str:
    """A made-up name without its number, which says what kind of operator has it; "" for another name."""
    found = _MADE_UP.fullmatch(name)
    return found[1] if found else ""


def standing_results_of(subscriptions: str) -> str:
    """The made-up name of the store of results that a join by foreign key has beside that of its subscriptions."""
    number, rest = _number_of(subscriptions)
    return f"{STANDING_RESULTS}-{number + _NUMBERS_BETWEEN:010d}-store{rest}"


def subscriptions_of(standing_results: str) -> str:
    """The inverse of ``standing_results_of``."""
    number, rest = _number_of(standing_results)
    return f"{SUBSCRIPTIONS}-{number - _NUMBERS_BETWEEN:010d}{rest.removeprefix('-store')}"


def _number_of(name: str) -> tuple[int, str]:
    """The running number in a made-up name, and what follows it."""
    found = _MADE_UP.fullmatch(name)
    assert found is not None
    return int(found[2]), found[3]


def unused_name(name: str, taken: Collection[str]) -> str:
    """``name``, or if that is taken, the same with the first number after it that is free."""
    candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(each for each in candidates if each not in taken)


class Lineages:
    """The lineages of one topology's operators. Of shared nodes each is described once."""

    def __init__(self) -> None:
        self._origins: dict[Node, str] = {}
        self._steps: dict[Node, str] = {}
        self._outputs: dict[Node, frozenset[str]] = {}

    def of(self, node: Node) -> Lineage:
        """The lineage of ``node``, whose own names are no part of it."""
        return Lineage(
            operator=type(node).__name__.removesuffix("Node"),
            origin=self._joined(node),
            steps=digest([_settings(node), [self._steps_to(parent) for parent in node.parents]], 8),
            outputs=tuple(sorted(self._fed_by(node))),
        )

    def _origin(self, node: Node) -> str:
        """The nearest names that the program gave, of what ``node`` is made from."""
        if node not in self._origins:
            self._origins[node] = _given_name(node) or self._joined(node)
        return self._origins[node]

    def _joined(self, node: Node) -> str:
        parts = [self._origin(parent) for parent in node.parents]
        if isinstance(node, MergeNode):
            parts = sorted(set(parts))
        text = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        return text if len(text) <= _LONGEST_TEXT else digest([text], 8)

    def _steps_to(self, node: Node) -> str:
        """The operators between those names and the rows of ``node``. Expectations do not count, so that they can come
        and go."""
        if isinstance(node, ExpectNode):
            return self._steps_to(node.parent)
        if node not in self._steps:
            parts = [] if _given_name(node) else [self._steps_to(parent) for parent in _parents(node)]
            self._steps[node] = digest([_given_name(node) or _settings(node), parts], 8)
        return self._steps[node]

    def _fed_by(self, node: Node) -> frozenset[str]:
        """The nearest names that the program gave, of what is made from ``node``."""
        if node not in self._outputs:
            self._outputs[node] = frozenset().union(*(self._named(child) for child in node.children))
        return self._outputs[node]

    def _named(self, child: Node) -> frozenset[str]:
        match child:
            case TableSinkNode():
                return frozenset([child.table])
            case PeekNode(children=[]):
                return frozenset([str(_text(child.action))])
        name = _given_name(child)
        return frozenset([name]) if name else self._fed_by(child)


def _parents(node: Node) -> tuple[Node, ...]:
    """The parents, with a pattern's topics as one."""
    if not isinstance(node, SeveralTopicsNode):
        return node.parents
    return tuple({source.declared: source for source in node.sources}.values())


def _given_name(node: Node) -> str:
    """The name of a topic, repartition or store that the program gave; "" if it gave none."""
    match node:
        case SourceNode():
            return node.declared
        case RepartitionNode():
            return "" if is_made_up(node.name) else node.name
        case ProcessorNode():
            return next((store.name for store in node.own_stores), "")
    return next((store.name for store in node.stores if not is_made_up(store.name)), "")


def _settings(node: Node) -> list[Any]:
    """What the node does to rows, as text that is the same in every process."""
    return [
        type(node).__name__,
        *(
            _text(value)
            for each in fields(node)
            if not isinstance(value := getattr(node, each.name), Node)
            and (not isinstance(value, str) or each.name in _ALSO_TEXT)
            and each.name not in _NOT_SETTINGS
            and (each.name not in _UNLESS_SET or value)
        ),
    ]


def _text(value: Any) -> Any:
    match value:
        case pl.Expr():
            return str(value)
        case UserFunction():
            return getattr(value.call, "__qualname__", type(value.call).__qualname__)
        case Joiner():
            return _text(value.function)
        case Mapping():
            return {name: _text(each) for name, each in value.items()}
        case list() | tuple():
            return [_text(each) for each in value if not isinstance(each, str)]
        case bool() | int() | str() | None:
            return value
    return type(value).__name__
