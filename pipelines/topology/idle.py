"""What idle input means for a node: when the wall clock advances its stream time, and what it then follows."""

from __future__ import annotations

from collections.abc import Iterator

from weir.pipelines.topology.nodes import AggregateNode, DerivedTableNode, Node, SourceNode, SuppressNode


def idle_after_ms(node: Node) -> int | None:
    """How long the node's input must be idle before the wall clock advances its stream time; None for never.

    The shortest time set by the node and by the suppressions that wait for its windows, which follow it; if none sets
    one, the longest set by the topics upstream.
    """
    own = [node.idle_after_ms] if isinstance(node, (AggregateNode, SuppressNode)) else []
    if isinstance(node, AggregateNode):
        own += [each.idle_after_ms for each in _waiting_for(node)]
    asked = [each for each in own if each is not None]
    upstream = [each for parent in node.parents if (each := _source_idle_after_ms(parent)) is not None]
    return min(asked) if asked else max(upstream, default=None)


def followed_while_idle(node: Node) -> AggregateNode | None:
    """The aggregation whose stream time a suppression of final results follows while its input is idle.

    With idle time of its own, it could forward a window that the aggregation still changes, and so forward it twice.
    """
    if not (isinstance(node, SuppressNode) and node.is_final):
        return None
    above = node.parent
    while isinstance(above, DerivedTableNode):
        above = above.parent
    return above if isinstance(above, AggregateNode) else None


def _waiting_for(node: Node) -> Iterator[SuppressNode]:
    """The suppressions of final results that an aggregation's updates reach."""
    for child in node.children:
        if isinstance(child, DerivedTableNode):
            yield from _waiting_for(child)
        elif isinstance(child, SuppressNode) and child.is_final:
            yield child


def _source_idle_after_ms(node: Node) -> int | None:
    if isinstance(node, SourceNode):
        return node.idle_after_ms
    return max((each for parent in node.parents if (each := _source_idle_after_ms(parent)) is not None), default=None)
