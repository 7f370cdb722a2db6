"""Queries of an application's local stores from any process of the host, while it runs or afterwards.

Every answer carries the input position that it reflects. The stores themselves are in ``weir.state.stores``. Answers
come from the tasks whose state is on this host, so with several hosts each knows only its part. Threads may share a
reader: their reads take turns, since a process can open a store only once.
"""

from __future__ import annotations

import dataclasses
import glob
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.committed_input import commit_with, input_before
from weir.pipelines.errors import QueryError
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.serdes.row_type import RowType, key_frame
from weir.pipelines.tasks.epoch import CLOCKS_KEY, POSITIONS_KEY, load_task_row
from weir.pipelines.topology.sub_topology import SubTopology
from weir.state.commit.protocol import newest_commit
from weir.state.engine.backing import reading_own
from weir.state.engine.contract import StateView
from weir.state.engine.instances import current_instance
from weir.state.engine.views import NewestView, open_reader
from weir.state.errors import OwnStoreError
from weir.state.storage.places import folder_at
from weir.state.stores.access import Key, Scan, StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.kinds import store_of
from weir.state.stores.session import SessionStore
from weir.state.stores.specs import PLACE, key_columns
from weir.state.stores.versioned import VersionedStore
from weir.state.stores.window import WindowStore
from weir.state.types import IsolationLevel, Positions, StoreKind, StoreSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POLL_S = 0.01
_HEARS_WITHIN_S = 1.0
"""A running application tells its tasks of a commit sooner."""
_UNHEARD = "has not heard of its newest commit"
_TURN = Lock()
_LAST_PLACE = (1 << 63) - 1
"""Greater than any place in a list."""

Read = Callable[[Any], pl.DataFrame]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """Options that every query takes.

    Examples:
        >>> from shop import app
        >>> from weir.state.types import IsolationLevel
        >>> reader = StateReader(".weir", app)
        >>> newest = Query(isolation=IsolationLevel.READ_UNCOMMITTED)
        >>> reader.get("spent", "ann", query=newest).rows["cents"].to_list()
        [1200]
        >>> after_three_orders = Query(at_least={"orders": {0: 3}}, timeout=timedelta(seconds=5))
        >>> reader.get("spent", "ann", query=after_three_orders).position
        {'orders': {0: 3}}
    """

    isolation: IsolationLevel | None = None
    """None: the application's ``state_isolation``."""
    at_least: Positions = dataclasses.field(default_factory=dict)
    """The answer must reflect the input up to these offsets, by topic and partition (Kafka's ``PositionBound``). With
    ``read_uncommitted`` the topics must be ones that the store's own tasks read; after a repartition there are none."""
    timeout: timedelta = timedelta(0)
    """How long to wait until ``at_least`` is reached."""


_AS_SET = Query()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Rows of a store, and the input position that they reflect."""

    rows: pl.DataFrame
    """Key columns, finished values and ``_ts``. Those of key-value and list stores are in key order, all others ordered
    by task, then as the store orders them."""
    position: Positions
    """By topic and partition, the offset before which every record has had all its effects on the store. With
    ``read_uncommitted``, only of the topics that the store's own tasks read: none after a repartition. Empty while a
    task after a repartition has not heard of the newest commit, and what was on its way to it is gone."""


class StateReader:
    """Reads the stores of one application, from any process of the host, while it runs or afterwards.

    ``directory`` is the folder that ``--dir`` names, ``warehouse`` the setting of that name if it is not in the folder.
    ``schema_registry`` holds the client properties of a schema
    registry, ``{"url": ...}``; only ``task_of`` needs it, for topics with Avro or Protobuf keys.

    Examples:
        ``shop.py`` keeps what each customer spent (``spent``), the orders of each hour (``hourly``) and visit
        (``visits``), and a versioned table of prices (``prices``). ``weir run shop:app`` has read three orders:

        >>> from shop import app
        >>> reader = StateReader(".weir", app)
        >>> answer = reader.get("spent", "ann")
        >>> answer.rows.to_dicts()
        [{'customer': 'ann', 'orders': 2, 'cents': 1200, '_ts': 1767258600000}]
        >>> answer.position
        {'orders': {0: 3}}
    """

    def __init__(
        self,
        directory: Path | str,
        application: Application,
        *,
        warehouse: Path | str | None = None,
        schema_registry: Mapping[str, str] | None = None,
    ) -> None:
        self._schema_registry = dict(schema_registry or {})
        self._folder = Path(directory) / "state" / application.id
        self._warehouse = folder_at(warehouse or Path(directory) / "warehouse") / application.id
        self._application, self._topology = application, application.topology

    def get(self, store: str, key: Key, *, as_of: datetime | None = None, query: Query = _AS_SET) -> Answer:
        """The row of a key: one or none; of a list store, the list, one row per value. ``as_of`` is for versioned
        stores.

        A key of one column is that column's value; a key of several columns is a tuple in their order, a dictionary,
        or an object with these fields, as functions get it.

        Raises:
            QueryError: The store does not exist or is of another kind, the key does not fit its columns, this host has
                no state of it, or the position is not reached in time.

        Examples:
            >>> from shop import app
            >>> reader = StateReader(".weir", app)
            >>> reader.get("spent", "ann").rows["cents"].to_list()
            [1200]
            >>> reader.get("prices", "tea").rows["cents"].to_list()
            [350]
            >>> half_past_nine = datetime(2026, 1, 1, 9, 30, tzinfo=UTC)
            >>> reader.get("prices", "tea", as_of=half_past_nine).rows["cents"].to_list()
            [300]
        """

        def read(found: KeyValueStore | VersionedStore) -> pl.DataFrame:
            if isinstance(found, KeyValueStore) and PLACE in found.spec.key:
                return _range(found, key, key)
            keys = key_row(found.spec, key)
            if as_of is not None:
                keys = keys.with_columns(as_of_ms=pl.lit(_ms(as_of)))
            return found.get_rows(keys).filter("_found").drop("_found")

        kinds = (VersionedStore,) if as_of is not None else (KeyValueStore, VersionedStore)
        return self._ask(store, kinds, read, query)

    def range(
        self, store: str, lower: Key | None = None, upper: Key | None = None, *, query: Query = _AS_SET
    ) -> Answer:
        """Rows of the keys from ``lower`` through ``upper``, both included, in key order; None means no bound.

        Examples:
            >>> from shop import app
            >>> reader = StateReader(".weir", app)
            >>> reader.range("spent", "ann", "bob").rows.select("customer", "cents").rows()
            [('ann', 1200), ('bob', 200)]
        """
        return self._ask(
            store,
            (KeyValueStore,),
            lambda found: _range(found, lower, upper),
            query,
        )

    def prefix(self, store: str, prefix: Any, *, query: Query = _AS_SET) -> Answer:
        """Rows whose key starts with ``prefix``, in key order: the start of the first column, or a tuple of the first
        columns.

        Examples:
            >>> from shop import app
            >>> reader = StateReader(".weir", app)
            >>> reader.prefix("spent", "a").rows["customer"].to_list()
            ['ann']
        """
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
        """Windows that start from ``from_time`` through ``to_time``, both included; of one key, or of all (None).

        Examples:
            >>> from shop import app
            >>> reader = StateReader(".weir", app)
            >>> nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            >>> reader.windows("hourly", "ann", nine, nine).rows.select("window_start", "count").rows()
            [(datetime.datetime(2026, 1, 1, 9, 0, tzinfo=...), 2)]
            >>> reader.windows("hourly").rows["customer"].to_list()
            ['ann', 'bob']
        """
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
        """Sessions of a key that end at ``earliest_end`` or later and start at ``latest_start`` or earlier.

        Examples:
            >>> from shop import app
            >>> reader = StateReader(".weir", app)
            >>> (visit,) = reader.sessions("visits", "ann").rows.to_dicts()
            >>> visit["window_end"] - visit["window_start"], visit["count"]
            (datetime.timedelta(seconds=600), 2)
        """
        return self._ask(
            store,
            (SessionStore,),
            lambda found: _frame(
                found.find_sessions(_dictionary(found.spec, key), _ms(earliest_end), _ms(latest_start))
            ),
            query,
        )

    def committed_offset(self, store: str, topic: str, partition: int) -> int | None:
        """The offset of an input topic's partition at the store's last commit (KIP-892), behind repartitions too: every
        record before it has had all its effects on the store. None if the store does not depend on that partition, or
        before its first commit.

        The store's last commit is the newest that its tasks on this host have heard of.

        Raises:
            QueryError: The store does not exist, or this host has no state of it.

        Examples:
            >>> from shop import app
            >>> StateReader(".weir", app).committed_offset("spent", "orders", 0)
            3
        """
        return self.committed_position(store).get(topic, {}).get(partition)

    def committed_position(self, store: str) -> Positions:
        """``committed_offset`` for every partition that the store depends on, by topic.

        Examples:
            >>> from shop import app
            >>> StateReader(".weir", app).committed_position("spent")
            {'orders': {0: 3}}
        """
        sub_topology = self._spec(store)[0]
        position: Positions = {}
        for folder in self._task_folders(store):
            deadline = time.monotonic() + _HEARS_WITHIN_S
            while True:
                with _TURN, open_reader(self._instance(folder), IsolationLevel.READ_COMMITTED) as held:
                    reached = self._reached(held, sub_topology, folder.name, IsolationLevel.READ_COMMITTED)
                if reached is not None:
                    break
                if time.monotonic() >= deadline:
                    raise QueryError(f"task {folder.name} {_UNHEARD}; run the application, and it will")
                time.sleep(_POLL_S)
            _take_least(position, reached)
        return position

    def kind(self, store: str) -> StoreKind:
        """The kind of a store.

        Examples:
            >>> from shop import app
            >>> print(StateReader(".weir", app).kind("hourly"))
            window
        """
        return self._spec(store)[1].kind

    def spec(self, store: str) -> StoreSpec:
        """A store's key columns, value columns and settings.

        Examples:
            >>> from shop import app
            >>> spec = StateReader(".weir", app).spec("spent")
            >>> list(spec.key), list(spec.value)
            (['customer'], ['orders', 'cents'])
        """
        return self._spec(store)[1]

    def tasks(self, store: str) -> list[str]:
        """The stored names of the tasks that hold a part of the store on this host.

        Examples:
            >>> from shop import app
            >>> StateReader(".weir", app).tasks("spent")
            ['orders_0']
        """
        return [folder.name for folder in self._task_folders(store)]

    def task_of(self, store: str, key: Key) -> str:
        """The task that Kafka's default partitioner assigns a key to, whether the key has a row or not.

        After a repartition the answer is certain. A topic's producers, however, may have used another partitioner, or
        written the key with another schema.

        Raises:
            SchemaRegistryError: The key's serde needs a schema registry, and there is none or it does not answer.

        Examples:
            >>> from shop import app
            >>> StateReader(".weir", app).task_of("spent", "ann")
            'orders_0'
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
        sub_topology, spec = self._spec(store)
        isolation = query.isolation or self._application.state_isolation
        deadline = time.monotonic() + query.timeout.total_seconds()
        rows: list[pl.DataFrame] = []
        position: Positions | None = {}
        for folder in self._task_folders(store):
            while True:
                instance = self._instance(folder)
                with (
                    _TURN,
                    open_reader(instance, isolation) as held,
                    _with_own_values(held, instance, spec) as snapshot,
                ):
                    reached = self._reached(held, sub_topology, folder.name, isolation)
                    behind = _UNHEARD if reached is None else _behind(reached, query.at_least)
                    if not behind or not query.at_least:
                        opened = store_of(spec, snapshot, _time(snapshot))
                        if not isinstance(opened, kinds):
                            raise QueryError(
                                f"store {store!r} is a {spec.kind.replace('_', '-')} store, which does not "
                                "support this query"
                            )
                        rows.append(read(opened))
                        break
                if time.monotonic() >= deadline:
                    raise QueryError(
                        f"task {folder.name} has not reached the requested position: {behind}; wait "
                        "longer, or check with `weir status` that the application is running"
                    )
                time.sleep(_POLL_S)
            if position is None or reached is None:
                position = None
            else:
                _take_least(position, reached)
        position = position or {}
        missing = {
            topic: offsets
            for topic, offsets in query.at_least.items()
            if not offsets.keys() <= position.get(topic, {}).keys()
        }
        if missing:
            raise QueryError(
                f"the tasks of store {store!r} on this host do not read all the requested partitions of "
                f"{', '.join(missing)}, so their position there is unknown; ask only for partitions that they read"
                + ("" if isolation is IsolationLevel.READ_COMMITTED else ", or with IsolationLevel.READ_COMMITTED")
            )
        found = pl.concat(rows)
        if spec.kind is StoreKind.KEY_VALUE and len(rows) > 1:
            found = found.sort(spec.key.names())
        return Answer(rows=self._topology.finish(spec.name, found).drop(PLACE, strict=False), position=position)

    def _instance(self, folder: Path) -> Path:
        instance = current_instance(folder)
        if instance is None:
            raise QueryError(f"task {folder.name} has no readable state at the moment; try again")
        return instance

    def _reached(
        self, held: NewestView, sub_topology: SubTopology, task: str, isolation: IsolationLevel
    ) -> Positions | None:
        """How far a task's state reflects its input.

        None while it has not heard of a commit that took what was on its way to it: then that is no longer known.
        """
        reached = load_task_row(held, POSITIONS_KEY, Positions)
        if isolation is not IsolationLevel.READ_COMMITTED or not sub_topology.edges_in:
            return reached
        record = None if held.base is None else commit_with(self._warehouse, task, held.base)
        if record is None:
            return None
        try:
            before = input_before(self._topology, sub_topology, self._warehouse, record, task)
        except FileNotFoundError:
            return None
        _take_least(reached, before)
        return reached

    def _spec(self, store: str) -> tuple[SubTopology, StoreSpec]:
        if self._application.topology.has_made_up_names:  # they are those of the newest commit
            newest = newest_commit(self._warehouse.parent, self._application.id)
            self._topology = self._application.over(newest).topology
        stores = {
            spec.name: (sub_topology, spec)
            for sub_topology in self._topology.sub_topologies
            for spec in sub_topology.stores
        }
        if (stored := self._topology.stored(store)) not in stores:
            raise QueryError(f"{self._application.id} has no store {store!r}; it has {', '.join(stores) or 'none'}")
        return stores[stored]

    def _task_folders(self, store: str) -> list[Path]:
        name = self._spec(store)[0].stored_name
        folders = [
            folder
            for folder in sorted(self._folder.glob(f"{glob.escape(name)}_*"))
            if folder.name.removeprefix(f"{name}_").isdigit() and current_instance(folder) is not None
        ]
        if not folders:
            raise QueryError(
                f"{self._application.id} has no state in {self._folder.parent} yet; run it first with `weir run "
                "MODULE:APP`"
            )
        return folders


@contextmanager
def _with_own_values(held: StateView, instance: Path, spec: StoreSpec) -> Iterator[StateView]:
    try:
        with reading_own(held, instance, spec) as snapshot:
            yield snapshot
    except OwnStoreError as error:
        raise QueryError(str(error)) from error


def _take_least(position: Positions, other: Positions) -> None:
    """Add ``other`` to ``position``; of two offsets of one partition the lower counts."""
    for topic, offsets in other.items():
        known = position.setdefault(topic, {})
        for partition, offset in offsets.items():
            known[partition] = min(offset, known.get(partition, offset))


def key_row(spec: StoreSpec, key: Key) -> pl.DataFrame:
    """A key as a row of the columns that users know (``key_columns``).

    Raises:
        QueryError: The key does not fit the columns.
    """
    try:
        return key_frame(key_columns(spec), key)
    except TypeError as error:
        raise QueryError(f"store {spec.name!r}: {error}") from None


def _range(found: KeyValueStore, lower: Key | None, upper: Key | None) -> pl.DataFrame:
    """Rows with keys from ``lower`` through ``upper``; of a list store, the whole lists."""
    bounds = [_dictionary(found.spec, bound) for bound in (lower, upper)]
    if PLACE in found.spec.key:
        bounds = [bound and {**bound, PLACE: place} for bound, place in zip(bounds, (0, _LAST_PLACE), strict=True)]
    return _frame(found.range(*bounds))


def _dictionary(spec: StoreSpec, key: Key | None) -> dict[str, Any] | None:
    return None if key is None else key_row(spec, key).row(0, named=True)


def _entering(keys: pl.DataFrame, entrance: RowType) -> pl.DataFrame:
    """A store's key, or its first columns, under the column names of the topic or edge that it comes from."""
    values = [value for name, value in keys.row(0, named=True).items() if not name.startswith("_")]
    return pl.DataFrame([values[: len(entrance.columns)]], schema=entrance.columns, orient="row")


def _frame(scan: Scan[Any]) -> pl.DataFrame:
    return scan.frame()


def _time(snapshot: StateView) -> StoreTime:
    return StoreTime(clocks=load_task_row(snapshot, CLOCKS_KEY, dict[str, int]), now_ms=time.time_ns() // 1_000_000)


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1)


def _behind(reached: Positions, wanted: Positions) -> str:
    """The topic partitions of the task that are behind the wanted position, as text; empty if none."""
    return ", ".join(
        f"{topic}-{partition} is at {reached[topic][partition]}, not {offset}"
        for topic, offsets in wanted.items()
        for partition, offset in offsets.items()
        if partition in reached.get(topic, {}) and reached[topic][partition] < offset
    )
