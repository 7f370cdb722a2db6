"""What silence means for a node: when the wall clock moves its stream time on, and what it then follows."""

from __future__ import annotations

from pipelines.topology.nodes import AggregateNode, FilterNode, MapValuesNode, Node, SourceNode, SuppressNode


def idle_after_ms(node: Node) -> int | None:
    """After how much silence the wall clock moves the node's stream time on; None for never.

    What the node says, or the suppression evaluated with it, else the longest of what the topics upstream say.
    """
    if isinstance(node, AggregateNode):
        own = [node.idle_after_ms, *(child.idle_after_ms for child in node.children
                                     if isinstance(child, SuppressNode) and child.fused_with is node)]
    else:
        own = [node.idle_after_ms] if isinstance(node, SuppressNode) else []
    asked = [each for each in own if each is not None]
    upstream = [each for parent in node.parents if (each := _source_idle_after_ms(parent)) is not None]
    return min(asked) if asked else max(upstream, default=None)


def followed_in_silence(node: Node) -> AggregateNode | None:
    """The aggregation whose stream time a suppression of final results takes over in silence, unless it says more."""
    if not (isinstance(node, SuppressNode) and node.is_final and node.idle_after_ms is None):
        return None
    above = node.parent
    while isinstance(above, (FilterNode, MapValuesNode)):
        above = above.parent
    return above if isinstance(above, AggregateNode) else None


def _source_idle_after_ms(node: Node) -> int | None:
    if isinstance(node, SourceNode):
        return node.idle_after_ms
    return max((each for parent in node.parents if (each := _source_idle_after_ms(parent)) is not None), default=None)
