"""Whether an application's tasks are elsewhere than on this host, at next to no cost where there is no cluster.

Only where there is one, what talks to the control database and to executors is imported.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from weir.pipelines.queries.contract import Location, TaskStores
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.sub_topology import SubTopology
from weir.pipelines.topology.topology import Topology

if TYPE_CHECKING:
    from weir.pipelines.queries.cluster import Cluster

_SERVERS = "SELECT 1 FROM weir_query_servers WHERE application = ? LIMIT 1"


class Elsewhere:
    """Where the tasks of an application are on a cluster. Threads may share it."""

    def __init__(self, directory: Path, application: str, control_url: str) -> None:
        """``control_url`` is the setting; if empty, the control database is a file of ``directory``."""
        self._file = None if control_url else directory / "control.sqlite"
        self._url = control_url or f"sqlite:///{self._file}"
        self._application = application
        self._turn = Lock()
        self._cluster: Cluster | None = None

    def locations(
        self, owner: SubTopology | GlobalTableNode, topology: Topology, folder: Path, here: TaskStores
    ) -> list[Location] | None:
        """Where the stores of each task of a sub-topology are, by the tasks' stored names, or where a global table is;
        None if no executor of a cluster runs any. ``here`` are those in ``folder``, on this host.

        Raises:
            QueryError: The control database does not answer.
        """
        if self._file is not None and not _has_servers(self._file, self._application):
            return None
        with self._turn:
            if self._cluster is None:
                from weir.pipelines.queries.cluster import Cluster

                self._cluster = Cluster(self._url, self._application)
        return self._cluster.locations(owner, topology, folder, here)


def _has_servers(file: Path, application: str) -> bool:
    """Whether the control database in a file may know of executors that answer queries."""
    if not file.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(_SERVERS, [application]).fetchone() is not None
    except sqlite3.Error:  # of a Weir that has no such table
        return False
