"""All Delta tables that an application's commits write."""

from __future__ import annotations

from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.pipelines.topology import Topology
from weir.state.changelog.rows import changelog_spec
from weir.state.types import TableSpec


def application_tables(topology: Topology) -> list[TableSpec]:
    """Outputs, outboxes, a changelog for each store that has one, and the dead letters."""
    stores = [store for sub_topology in topology.sub_topologies for store in sub_topology.stores if store.is_logged]
    return [*topology.table_specs(), *topology.outbox_specs(), *map(changelog_spec, stores), DEAD_LETTERS]
