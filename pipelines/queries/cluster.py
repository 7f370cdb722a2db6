"""Where the stores of an application's tasks are on a cluster, as the control database has it."""

from __future__ import annotations

from pathlib import Path

from weir.infra.control import ControlDatabase, ControlDatabaseError
from weir.infra.control.rows import QueryServerRow, TaskStatusRow
from weir.infra.process import this_machine
from weir.pipelines.errors import QueryError
from weir.pipelines.queries.contract import Location, TaskStores, whole
from weir.pipelines.queries.copies import Copies
from weir.pipelines.queries.remote import RemoteStores
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.sub_topology import SubTopology
from weir.pipelines.topology.topology import Topology
from weir.state.types import TaskId


class Cluster:
    """The executors of an application, and who of them has which task. Threads may share it."""

    def __init__(self, control_url: str, application: str) -> None:
        try:
            self._database = ControlDatabase(control_url)
        except ControlDatabaseError as error:
            raise QueryError(str(error)) from None
        self._application = application
        self._remote: dict[QueryServerRow, RemoteStores] = {}

    def locations(
        self, owner: SubTopology | GlobalTableNode, topology: Topology, folder: Path, here: TaskStores
    ) -> list[Location] | None:
        """Where the stores of each task of a sub-topology are, by the tasks' stored names, or where a global table is;
        None if no executor of a cluster runs any. ``here`` are those in ``folder``, on this host.

        Raises:
            QueryError: The control database does not answer.
        """
        try:
            servers, tasks = self._database.query_servers(self._application)
        except ControlDatabaseError as error:
            raise QueryError(
                f"which executor has the tasks of {self._application!r} is in the {error}; try again once it answers"
            ) from None
        if not servers:
            return None
        for gone in self._remote.keys() - set(servers):
            if (stores := self._remote.pop(gone, None)) is not None:
                stores.close()
        own = this_machine(), str(folder.resolve())
        found = {
            server.executor: here if (server.machine, server.folder) == own else self._stores_of(server)
            for server in servers
        }
        if isinstance(owner, GlobalTableNode):
            places = sorted(found.values(), key=lambda place: place is not here)
            return [Location(task=whole(owner.store.name), stores=Copies(places))]
        locations = [
            _location(row, topology.task_name(task), found)
            for row in tasks
            if (task := _task(row)).sub_topology == owner.index
        ]
        return sorted(locations, key=lambda location: location.task)

    def _stores_of(self, server: QueryServerRow) -> TaskStores:
        made = RemoteStores(server.executor, server.host, server.port, server.token)  # connects when it is asked
        return self._remote.setdefault(server, made)


def _task(row: TaskStatusRow) -> TaskId:
    return TaskId(*map(int, row.task.split("_")))


def _location(row: TaskStatusRow, name: str, stores: dict[str, TaskStores]) -> Location:
    by_age = sorted((row.standbys or {}).items(), key=lambda standby: standby[1])
    is_restoring = row.status in ("restoring", "in doubt")
    owner = None if is_restoring else stores.get(row.executor or "")
    return Location(
        task=name,
        stores=owner,
        why=f"it is {row.status}"
        if is_restoring
        else f"it is on executor {row.executor}, which answers no queries yet",
        standbys=[stores[executor] for executor, _ in by_age if executor in stores and stores[executor] is not owner],
        has_state=row.state is not None,
    )
