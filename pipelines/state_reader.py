"""Queries of an application's local stores from any process of the host, while it runs or after it.

Every answer says at which position of the input it stands. The stores themselves are ``weir.state.stores``; answers
come from the tasks whose state is on this host, so with several hosts each knows its part. Threads may share a reader:
their reads take turns, for a process opens a store once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.errors import QueryError
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.serdes.row_type import RowType, key_frame
from weir.pipelines.tasks.epoch import CLOCKS_KEY, POSITIONS_KEY, load_task_row
from weir.pipelines.topology.topology import SubTopology
from weir.state.engine.contract import StateView
from weir.state.engine.instances import current_instance
from weir.state.engine.views import open_reader
from weir.state.stores.access import Key, Scan, StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.kinds import store_of
from weir.state.stores.session import SessionStore
from weir.state.stores.versioned import VersionedStore
from weir.state.stores.window import WindowStore
from weir.state.types import IsolationLevel, Positions, StoreKind, StoreSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POLL_S = 0.01
_TURN = Lock()

Read = Callable[[Any], pl.DataFrame]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """How to read, whatever is asked for."""

    isolation: IsolationLevel | None = None
    """None: the application's ``state_isolation``."""
    at_least: Positions = dataclasses.field(default_factory=dict)
    """The answer must have seen the input up to these offsets, by topic and partition (Kafka's ``PositionBound``), of
    topics that the store's own tasks read: none behind a repartition."""
    timeout: timedelta = timedelta(0)
    """How long to wait for that."""


_AS_SET = Query()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Rows of a store, and where the input stood."""

    rows: pl.DataFrame
    """Key columns, finished values and ``_ts``, by task, then in the store's order."""
    position: Positions
    """Next offsets by topic and partition, of the tasks that were asked and read topics themselves: empty for a store
    behind a repartition."""


class StateReader:
    """Reads the stores of one application. ``directory`` is what ``--dir`` names.

    ``schema_registry`` are the client properties of a schema registry, ``{"url": ...}``: finding the task of a key
    needs one where a topic has Avro or Protobuf keys. Rows of stores are read without.
    """

    def __init__(
        self, directory: Path | str, application: Application, *, schema_registry: Mapping[str, str] | None = None
    ) -> None:
        self._schema_registry = dict(schema_registry or {})
        self._folder = Path(directory) / "state" / application.id
        self._application, self._topology = application, application.topology

    def get(self, store: str, key: Key, *, as_of: datetime | None = None, query: Query = _AS_SET) -> Answer:
        """The row of a key: one or none. ``as_of`` is for versioned stores.

        A key is its column's value; of several columns a tuple in their order, a dictionary, or an object with these
        fields, as functions get it.

        Raises:
            QueryError: There is no such store, or it is of another kind; the key does not fit its columns; there is no
                state here; or the position is not reached in time.
        """

        def read(found: KeyValueStore | VersionedStore) -> pl.DataFrame:
            keys = key_row(found.spec, key)
            if as_of is not None:
                keys = keys.with_columns(as_of_ms=pl.lit(_ms(as_of)))
            return found.get_rows(keys).filter("_found").drop("_found")

        kinds = (VersionedStore,) if as_of is not None else (KeyValueStore, VersionedStore)
        return self._ask(store, kinds, read, query)

    def range(
        self, store: str, lower: Key | None = None, upper: Key | None = None, *, query: Query = _AS_SET
    ) -> Answer:
        """Rows of the keys from ``lower`` through ``upper``, both included; None is no bound."""
        return self._ask(
            store,
            (KeyValueStore,),
            lambda found: _frame(found.range(_dictionary(found.spec, lower), _dictionary(found.spec, upper))),
            query,
        )

    def prefix(self, store: str, prefix: Any, *, query: Query = _AS_SET) -> Answer:
        """Rows whose key begins so: a beginning of the first column, or a tuple of the first columns."""
        return self._ask(store, (KeyValueStore,), lambda found: _frame(found.prefix_scan(prefix)), query)

    def windows(
        self,
        store: str,
        key: Key | None = None,
        from_time: datetime | None = None,
        to_time: datetime | None = None,
        *,
        query: Query = _AS_SET,
    ) -> Answer:
        """Windows that start from ``from_time`` through ``to_time``, both included: of one key, or of all (None)."""
        bounds = (_ms(from_time), _ms(to_time))
        return self._ask(
            store,
            (WindowStore,),
            lambda found: _frame(
                found.fetch_all(*bounds) if key is None else found.fetch_between(_dictionary(found.spec, key), *bounds)
            ),
            query,
        )

    def sessions(
        self,
        store: str,
        key: Key,
        earliest_end: datetime | None = None,
        latest_start: datetime | None = None,
        *,
        query: Query = _AS_SET,
    ) -> Answer:
        """Sessions of a key that end no earlier and start no later than given, both included."""
        return self._ask(
            store,
            (SessionStore,),
            lambda found: _frame(
                found.find_sessions(_dictionary(found.spec, key), _ms(earliest_end), _ms(latest_start))
            ),
            query,
        )

    def kind(self, store: str) -> StoreKind:
        """What kind of store that is."""
        return self._spec(store)[1].kind

    def spec(self, store: str) -> StoreSpec:
        """The columns of a store."""
        return self._spec(store)[1]

    def tasks(self, store: str) -> list[str]:
        """The tasks that hold a part of the store on this host, by their stored names."""
        return [folder.name for folder in self._task_folders(store)]

    def task_of(self, store: str, key: Key) -> str:
        """The task that holds a key, whether it has a row or not: by Kafka's default partitioner.

        Behind a repartition that is certain; a topic's producers may have used another partitioner, or written the key
        under another schema.

        Raises:
            SchemaRegistryError: The key's serde needs a schema registry, and there is none or it does not answer.
        """
        sub_topology, spec = self._spec(store)
        names = self.tasks(store)
        count = 1 + max(int(name.rpartition("_")[2]) for name in names)
        keys = key_row(spec, key)
        if sub_topology.keyed_edges:
            edge = sub_topology.keyed_edges[0]
            if edge.met is not None:
                connect_serdes([edge.met.key_serde], self._schema_registry)
            partition = int(edge.partition_of(_entering(keys, edge.node.record.key), count)[0])
        else:
            source = sub_topology.sources[0]
            (item,) = source.key.to_objects(_entering(keys, source.key))
            connect_serdes([source.key_serde], self._schema_registry)
            encoded = source.key_serde.encode(item)
            partition = int(murmur2([encoded or b""])[0] & 0x7FFFFFFF) % count
        return f"{sub_topology.stored_name}_{partition}"

    def _ask(self, store: str, kinds: tuple[type, ...], read: Read, query: Query) -> Answer:
        spec = self._spec(store)[1]
        isolation = query.isolation or self._application.state_isolation
        deadline = time.monotonic() + query.timeout.total_seconds()
        rows: list[pl.DataFrame] = []
        position: Positions = {}
        for folder in self._task_folders(store):
            while True:
                instance = current_instance(folder)
                if instance is None:
                    raise QueryError(f"task {folder.name} has no state that can be read at the moment; try again")
                with _TURN, open_reader(instance, isolation) as snapshot:
                    reached = load_task_row(snapshot, POSITIONS_KEY, Positions)
                    behind = _behind(reached, query.at_least)
                    if not behind:
                        found = store_of(spec, snapshot, _time(snapshot))
                        if not isinstance(found, kinds):
                            raise QueryError(
                                f"store {store!r} is a {spec.kind.replace('_', '-')} store, which this "
                                "query does not fit"
                            )
                        rows.append(read(found))
                        break
                if time.monotonic() >= deadline:
                    raise QueryError(
                        f"task {folder.name} has not reached the position asked for: {behind}; wait "
                        "longer, or see with `weir status` whether the application runs"
                    )
                time.sleep(_POLL_S)
            for topic, offsets in reached.items():
                position.setdefault(topic, {}).update(offsets)
        missing = {
            topic: offsets
            for topic, offsets in query.at_least.items()
            if not offsets.keys() <= position.get(topic, {}).keys()
        }
        if missing:
            raise QueryError(
                f"the tasks of store {store!r} on this host do not read {', '.join(missing)} in all the "
                "partitions asked for, so that position cannot be told; ask for what they read"
            )
        return Answer(rows=self._topology.finish(store, pl.concat(rows)), position=position)

    def _spec(self, store: str) -> tuple[SubTopology, StoreSpec]:
        stores = {
            spec.name: (sub_topology, spec)
            for sub_topology in self._topology.sub_topologies
            for spec in sub_topology.stores
        }
        if store not in stores:
            raise QueryError(f"{self._application.id} has no store {store!r}; it has {', '.join(stores) or 'none'}")
        return stores[store]

    def _task_folders(self, store: str) -> list[Path]:
        folders = [
            folder
            for folder in sorted(self._folder.glob(f"{self._spec(store)[0].stored_name}_*"))
            if current_instance(folder) is not None
        ]
        if not folders:
            raise QueryError(f"{self._application.id} has no state in {self._folder.parent} yet; run it first")
        return folders


def key_row(spec: StoreSpec, key: Key) -> pl.DataFrame:
    """A key as a row of the store's key columns, the times of windows and versions left out.

    Raises:
        QueryError: It does not fit them.
    """
    columns = {
        name: dtype
        for name, dtype in spec.key.items()
        if spec.kind is StoreKind.KEY_VALUE or name not in ("window_start", "window_end", "valid_from")
    }
    try:
        return key_frame(columns, key)
    except TypeError as error:
        raise QueryError(f"store {spec.name!r}: {error}") from None


def _dictionary(spec: StoreSpec, key: Key | None) -> dict[str, Any] | None:
    return None if key is None else key_row(spec, key).row(0, named=True)


def _entering(keys: pl.DataFrame, entrance: RowType) -> pl.DataFrame:
    """A store's key, or the first columns of it, as the topic or edge names it that it comes by."""
    values = [value for name, value in keys.row(0, named=True).items() if not name.startswith("_")]
    return pl.DataFrame([values[: len(entrance.columns)]], schema=entrance.columns, orient="row")


def _frame(scan: Scan[Any]) -> pl.DataFrame:
    return scan.frame()


def _time(snapshot: StateView) -> StoreTime:
    return StoreTime(clocks=load_task_row(snapshot, CLOCKS_KEY, dict[str, int]), now_ms=time.time_ns() // 1_000_000)


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1)


def _behind(reached: Positions, wanted: Positions) -> str:
    """Which of the topic partitions that the task reads are behind; empty if none."""
    return ", ".join(
        f"{topic}-{partition} is at {reached[topic][partition]}, not {offset}"
        for topic, offsets in wanted.items()
        for partition, offset in offsets.items()
        if partition in reached.get(topic, {}) and reached[topic][partition] < offset
    )
