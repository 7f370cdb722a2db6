"""Which of a node's parents passes a record on first, when the record reaches the node through several of them.

As in Kafka Streams, a record travels depth first: to the first child and everything below it, then to the next child.
"""

from __future__ import annotations

from collections.abc import Iterator

from weir.pipelines.topology.nodes import Node, RepartitionNode


def parents_by_arrival(node: Node) -> list[int]:
    """Indices of ``node.parents``, beginning with the parent through which one and the same record arrives first."""
    order = list(range(len(node.parents)))
    for head in dict.fromkeys(_heads(node)):
        steps = list(_steps(head, set()))
        known = [index for index in order if (node.parents[index], node) in steps]
        if len(known) > 1:
            known.sort(key=lambda index: steps.index((node.parents[index], node)))
            return [*known, *(index for index in order if index not in known)]
    return order


def is_written_first(table: Node, trigger: Node, node: Node) -> bool:
    """Whether ``table`` has already taken a record when the record comes from ``trigger`` to ``node``; also true where
    no record reaches both."""
    for head in dict.fromkeys(_heads(node)):
        steps = list(_steps(head, set()))
        arrivals = [index for index, step in enumerate(steps) if step == (trigger, node)]
        written = [index for index, (_, child) in enumerate(steps) if child is table]
        if head is table and arrivals:
            return True
        if arrivals and written:
            return written[0] < arrivals[0]
    return True


def _heads(node: Node) -> Iterator[Node]:
    """The sources and repartitions above ``node``."""
    for parent in node.parents:
        if isinstance(parent, RepartitionNode) or not parent.parents:
            yield parent
        else:
            yield from _heads(parent)


def _steps(node: Node, seen: set[Node]) -> Iterator[tuple[Node, Node]]:
    """Pairs of parent and child, in the order in which a record first passes from one to the other."""
    seen.add(node)
    for child in node.children:
        yield node, child
        if child not in seen and not isinstance(child, RepartitionNode):
            yield from _steps(child, seen)
