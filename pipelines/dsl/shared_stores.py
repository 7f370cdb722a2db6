"""Stores that a program declares on their own and connects to processors."""

from __future__ import annotations

from typing import Any

from weir.pipelines.dsl.graph import Graph, check_name
from weir.pipelines.errors import TopologyError
from weir.pipelines.place import Place
from weir.pipelines.processors.stores import StoreDeclaration
from weir.pipelines.topology.processors import ProcessorNode, SharedStore


def add_state_store(graph: Graph, declaration: StoreDeclaration) -> SharedStore:
    """A store that processors can be connected to; raises ``TopologyError`` when the name is taken."""
    if isinstance(declaration, (str, type)) or not callable(getattr(declaration, "spec", None)):
        raise TopologyError(
            f"add_state_store got {declaration!r}; pass a store with its types, for example "
            'KeyValueStore("counts", key=str, value=int)'
        )
    name, place = check_name("store", declaration.name), Place.of_call()
    if name in graph.stores:
        raise TopologyError(
            f"the store {name!r} is added twice; add it once, and name it in stores=[{name!r}] of each processor",
            places=[place, graph.stores[name].place],
        )
    declaration.spec()
    graph.stores[name] = SharedStore(declaration=declaration, place=place)
    return graph.stores[name]


def shared_store(graph: Graph, node: str, name: str) -> SharedStore:
    """The store that the program has declared under ``name``; raises ``TopologyError`` when there is none."""
    if name not in graph.stores:
        known = ", ".join(map(repr, graph.stores))
        raise TopologyError(
            f"{node} is to be connected to the store {name!r}, but "
            + (f"only {known} {'is' if len(graph.stores) == 1 else 'are'} added" if known else "no store is added")
            + f'; add it first, for example builder.add_state_store(KeyValueStore("{name}", key=str, value=int))'
        )
    return graph.stores[name]


def connect(graph: Graph, processor: Any, stores: Any) -> None:
    """Connect a processor to stores, by their names.

    Raises:
        TopologyError: There is no such processor or store.
    """
    processors = {node.name: node for node in graph.nodes if isinstance(node, ProcessorNode)}
    if processor not in processors:
        known = f"the processors are {', '.join(map(repr, processors))}" if processors else "it has no processors"
        raise TopologyError(
            f"the topology has no processor {processor!r} to connect to a store; {known}; name one with "
            'process(..., name="..."), or add it first'
        )
    node = processors[processor]
    for name in stores:
        store = shared_store(graph, node.name, name)
        if store not in node.shared:
            node.shared = (*node.shared, store)


def check_connected(graph: Graph) -> None:
    """Raises ``TopologyError`` for a store that is connected to no processor."""
    connected = {store.name for node in graph.nodes if isinstance(node, ProcessorNode) for store in node.shared}
    for name, store in graph.stores.items():
        if name not in connected:
            raise TopologyError(
                f"the store {name!r} is connected to no processor; name it in process(..., stores=[{name!r}]), or "
                "leave add_state_store out",
                places=[store.place],
            )
