"""The operators of a foreign-key join: where the left table is, where the right one is, and where answers arrive."""

from __future__ import annotations

from weir.pipelines.operators.foreign_key import Naming, ResponseJoin, SubscriptionJoin, SubscriptionSend
from weir.pipelines.operators.mapping import SelectKey
from weir.pipelines.tasks.operator_factory.table_views import Operators, foreign_key_side_of
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode, SubscriptionSendNode


def subscription_send_of(node: SubscriptionSendNode, operators: Operators) -> SubscriptionSend:
    """The operator that turns the left table's updates into messages to the right one."""
    return SubscriptionSend(left=foreign_key_side_of(node.parent, operators), key=node.key, naming=_naming_of(node))


def subscription_join_of(node: SubscriptionJoinNode, operators: Operators) -> SubscriptionJoin:
    """The operator that keeps subscriptions beside the right table and answers them."""
    (right_table,) = node.others
    return SubscriptionJoin(
        right=foreign_key_side_of(right_table, operators),
        store=node.store,
        key=node.key,
        right_names=node.joiner.right_names,
    )


def response_join_of(node: ResponseJoinNode, operators: Operators) -> ResponseJoin:
    """The operator that joins answers with the rows of the left table."""
    (left_table,) = node.others
    return ResponseJoin(
        left=foreign_key_side_of(left_table, operators),
        naming=_naming_of(node.send),
        joiner=node.joiner,
        kind=node.send.kind,
        standing=node.standing,
    )


def _naming_of(node: SubscriptionSendNode) -> Naming:
    record = node.parent.record
    selector = SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.selected.key)
    return Naming(
        selector=selector,
        foreign_key=tuple(node.record.key_columns),
        value=record.beside_key,
        is_left=node.kind == "left",
    )
