"""Topics by pattern: which topics of a cluster a program reads, and a topology that reads them.

Until they are known, a pattern is one source. They are one source each afterwards, while names, lineages and the
fingerprint stay those of the pattern: so a topic that appears later is no other program.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from weir.pipelines.errors import TopologyError
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.nodes import Node, SeveralTopicsNode, SourceNode

OF_BROKERS = "__"
"""How the names of topics begin that brokers keep for themselves; no pattern matches them."""


def check_patterns(nodes: Sequence[Node]) -> None:
    """Raise ``TopologyError`` when a topic that is read by name is read by a pattern too."""
    sources = [node for node in nodes if isinstance(node, SourceNode)]
    named = [source for source in sources if source.pattern is None]
    named += [node.source for node in nodes if isinstance(node, GlobalTableNode)]
    for by_pattern in sources:
        for other in named:
            if matches(by_pattern, other.topic):
                raise TopologyError(
                    f"the topic {other.topic!r} is read by its name and by the pattern {by_pattern.declared!r}; leave "
                    f'it out of the pattern, as in re.compile(r"(?!{other.topic}$){by_pattern.declared}")',
                    places=[by_pattern.place, other.place],
                )


def matches(source: SourceNode, topic: str) -> bool:
    """Whether the source's pattern matches the whole name of ``topic``; false for a source without one."""
    pattern = source.pattern
    return pattern is not None and not topic.startswith(OF_BROKERS) and pattern.fullmatch(topic) is not None


def open_patterns(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The patterns of which no topic is known."""
    return tuple(node.topic for node in nodes if isinstance(node, SourceNode) and node.is_open)


def read_topics(nodes: Sequence[Node], topics: Sequence[str]) -> tuple[Node, ...]:
    """``nodes``, which may be changed, with each open pattern replaced by those of ``topics`` that it matches, in
    their order. A pattern that matches none stays open.

    Raises:
        TopologyError: Two patterns match one topic.
    """
    found: list[Node] = []
    owners: dict[str, SourceNode] = {}
    for node in nodes:
        if not isinstance(node, SourceNode) or not node.is_open:
            found.append(node)
            continue
        matched = [topic for topic in topics if matches(node, topic)]
        for topic in matched:
            other = owners.setdefault(topic, node)
            if other is not node:
                raise TopologyError(
                    f"the topic {topic!r} matches two patterns, {other.declared!r} and {node.declared!r}; change one "
                    "of them so that it does not",
                    places=[node.place, other.place],
                )
        found += _sources(node, matched) if matched else [node]
    return tuple(found)


def _sources(by_pattern: SourceNode, topics: Sequence[str]) -> list[SourceNode]:
    """A source for each topic, joined to what reads the pattern."""
    prefix = by_pattern.name.removesuffix(by_pattern.declared)
    sources = []
    for topic in topics:
        source = copy.copy(by_pattern)
        source.name, source.topic, source.is_open = f"{prefix}{topic}", topic, False
        source.children = [*by_pattern.children]
        sources.append(source)
    for child in by_pattern.children:
        assert isinstance(child, SeveralTopicsNode)
        parents = [each for parent in child.parents for each in (sources if parent is by_pattern else [parent])]
        child.parent, child.others = parents[0], tuple(parents[1:])
    return sources
