"""Queries of an application's stores from any process, while it runs or afterwards.

Every answer carries the input position that it reflects. Tasks whose stores are on this host are read from disk
(``weir.pipelines.queries.local``); on a cluster, executors on other hosts are asked for theirs
(``weir.pipelines.queries.cluster``). Threads may share a reader.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.errors import QueryError
from weir.pipelines.queries.contract import AwayError, Location, Question, TaskAnswer, TaskStores, who, whole
from weir.pipelines.queries.elsewhere import Elsewhere
from weir.pipelines.queries.local import UNHEARD, LocalStores, take_least
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.serdes.row_type import RowType, key_frame
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.sub_topology import SubTopology
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at
from weir.state.stores.access import Key
from weir.state.stores.specs import PLACE, key_columns
from weir.state.types import IsolationLevel, Positions, StoreKind, StoreSpec

Owner = SubTopology | GlobalTableNode
"""What a store is of: all tasks of a sub-topology, each a part, or a global table, which is whole everywhere."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POLL_S, _AWAY_POLL_S = 0.01, 0.1
"""How often tasks are asked again, and those that nobody can answer for."""
_HEARS_WITHIN_S = 1.0
"""A running application tells its tasks of a commit sooner."""


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
    """How long to wait until ``at_least`` is reached, and on a cluster for tasks that are being restored elsewhere."""
    allow_stale: bool = False
    """On a cluster, whether standbys answer for tasks whose executor cannot (Kafka Streams' ``enableStaleStores``).
    They lack the newest commits, as the answer's position says, and what no commit covers."""


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
    """Reads the stores of one application, from any process, while it runs or afterwards.

    ``directory`` is the folder that ``--dir`` names, ``warehouse`` the setting of that name if it is not in the folder.
    ``control_url`` is the setting of that name, by which a reader on any host finds the executors of a cluster; without
    it, only a reader with the driver's own folder does. ``schema_registry`` holds the client properties of a schema
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
        control_url: str = "",
    ) -> None:
        self._schema_registry = dict(schema_registry or {})
        self._folder = Path(directory) / "state" / application.id
        self._warehouse = folder_at(warehouse or Path(directory) / "warehouse") / application.id
        self._application, self._topology = application, application.topology
        self._elsewhere = Elsewhere(Path(directory), application.id, control_url)

    def get(self, store: str, key: Key, *, as_of: datetime | None = None, query: Query = _AS_SET) -> Answer:
        """The row of a key: one or none; of a list store, the list, one row per value. ``as_of`` is for versioned
        stores.

        A key of one column is that column's value; a key of several columns is a tuple in their order, a dictionary,
        or an object with these fields, as functions get it.

        Raises:
            QueryError: The store does not exist or is of another kind, the key does not fit its columns, there is no
                state of it, or the position is not reached, or a task's executor does not answer, in time.

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

        kinds = (StoreKind.VERSIONED,) if as_of is not None else (StoreKind.KEY_VALUE, StoreKind.VERSIONED)
        spec = self._spec_of(store, kinds)
        return self._ask(spec, query, look="key", lower=key_row(spec, key), as_of_ms=_ms(as_of))

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
        spec = self._spec_of(store, (StoreKind.KEY_VALUE,))
        return self._ask(spec, query, look="range", lower=_bound(spec, lower), upper=_bound(spec, upper))

    def prefix(self, store: str, prefix: Any, *, query: Query = _AS_SET) -> Answer:
        """Rows whose key starts with ``prefix``, in key order: the start of the first column, or a tuple of the first
        columns.

        Examples:
            >>> from shop import app
            >>> reader = StateReader(".weir", app)
            >>> reader.prefix("spent", "a").rows["customer"].to_list()
            ['ann']
        """
        spec = self._spec_of(store, (StoreKind.KEY_VALUE,))
        return self._ask(spec, query, look="prefix", lower=prefix_row(spec, prefix))

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
        spec = self._spec_of(store, (StoreKind.WINDOW,))
        bounds = {"from_ms": _ms(from_time), "to_ms": _ms(to_time)}
        return self._ask(spec, query, look="windows", lower=_bound(spec, key), **bounds)

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
        spec = self._spec_of(store, (StoreKind.SESSION,))
        bounds = {"from_ms": _ms(earliest_end), "to_ms": _ms(latest_start)}
        return self._ask(spec, query, look="sessions", lower=key_row(spec, key), **bounds)

    def committed_offset(self, store: str, topic: str, partition: int) -> int | None:
        """The offset of an input topic's partition at the store's last commit (KIP-892), behind repartitions too: every
        record before it has had all its effects on the store. None if the store does not depend on that partition, or
        before its first commit.

        The store's last commit is the newest that its tasks have heard of.

        Raises:
            QueryError: The store does not exist, or there is no state of it.

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
        owner, spec = self._spec(store)
        question = Question(look="position", store=spec.name, isolation=IsolationLevel.READ_COMMITTED)
        position: Positions = {}
        for answer in self._answers(owner, question, _POSITION):
            if answer.reached is None:
                raise QueryError(f"{who(answer.task)} {UNHEARD}; run the application, and it will")
            take_least(position, answer.reached)
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
        """The stored names of the tasks that hold a part of the store.

        Raises:
            QueryError: The store does not exist, there is no state of it, or it is a global table.

        Examples:
            >>> from shop import app
            >>> StateReader(".weir", app).tasks("spent")
            ['orders_0']
        """
        return [location.task for location in self._locations(self._tasks_of(store)) if location.has_state]

    def task_of(self, store: str, key: Key) -> str:
        """The task that Kafka's default partitioner assigns a key to, whether the key has a row or not.

        After a repartition the answer is certain. A topic's producers, however, may have used another partitioner, or
        written the key with another schema.

        Raises:
            QueryError: As ``tasks`` raises.
            SchemaRegistryError: The key's serde needs a schema registry, and there is none or it does not answer.

        Examples:
            >>> from shop import app
            >>> StateReader(".weir", app).task_of("spent", "ann")
            'orders_0'
        """
        sub_topology, spec = self._tasks_of(store), self.spec(store)
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

    def _ask(self, spec: StoreSpec, query: Query, **asked: Any) -> Answer:
        owner = self._spec(spec.name)[0]
        isolation = query.isolation or self._application.state_isolation
        question = Question(store=spec.name, isolation=isolation, at_least=query.at_least, **asked)
        rows: list[pl.DataFrame] = []
        position: Positions | None = {}
        for answer in self._answers(owner, question, query):
            if answer.rows is None:
                raise QueryError(
                    f"{who(answer.task)} has not reached the requested position: {answer.behind}; wait "
                    "longer, or check with `weir status` that the application is running"
                )
            rows.append(answer.rows)
            if position is None or answer.reached is None:
                position = None
            else:
                take_least(position, answer.reached)
        position = position or {}
        missing = {
            topic: offsets
            for topic, offsets in query.at_least.items()
            if not offsets.keys() <= position.get(topic, {}).keys()
        }
        if missing:
            raise QueryError(
                f"the tasks of store {spec.name!r} do not read all the requested partitions of "
                f"{', '.join(missing)}, so their position there is unknown; ask only for partitions that they read"
                + ("" if isolation is IsolationLevel.READ_COMMITTED else ", or with IsolationLevel.READ_COMMITTED")
            )
        found = pl.concat(rows)
        if spec.kind is StoreKind.KEY_VALUE and len(rows) > 1:
            found = found.sort(spec.key.names())
        return Answer(rows=self._topology.finish(spec.name, found).drop(PLACE, strict=False), position=position)

    def _answers(self, owner: Owner, question: Question, query: Query) -> list[TaskAnswer]:
        """What each task of a store answers, by their names, or a global table; what is still behind when the time is
        over is among it.

        Raises:
            QueryError: There is no state, or nobody answers for a task in time.
        """
        deadline = time.monotonic() + query.timeout.total_seconds()
        answers: dict[str, TaskAnswer] = {}
        while True:
            locations = self._locations(owner)
            pending = [each for each in locations if each.task not in answers or answers[each.task].behind]
            away = _asked(question, pending, answers, allow_stale=query.allow_stale)
            if not away and not any(answer.behind and answer.rows is None for answer in answers.values()):
                break
            if time.monotonic() >= deadline:
                if away:
                    raise _nobody_answers(away, query)
                break
            time.sleep(_AWAY_POLL_S if away else _POLL_S)
        known = [location.task for location in locations]
        if found := [answers[task] for task in known if task in answers and answers[task].has_state]:
            return found
        raise self._without_state()

    def _locations(self, owner: Owner) -> list[Location]:
        """Where the stores of each task of a sub-topology are, by the tasks' names, or where a global table is."""
        local = LocalStores(self._folder, self._warehouse, self._topology)
        if (found := self._elsewhere.locations(owner, self._topology, self._folder, local)) is not None:
            return found
        if isinstance(owner, GlobalTableNode):
            tasks = [whole(owner.store.name)] if local.has_global(owner) else []
        else:
            tasks = local.tasks(owner)
        if not tasks:
            raise self._without_state()
        return [Location(task=task, stores=local) for task in tasks]

    def _without_state(self) -> QueryError:
        return QueryError(
            f"{self._application.id} has no state in {self._folder.parent} yet; run it first with `weir run MODULE:APP`"
        )

    def _spec_of(self, store: str, kinds: Iterable[StoreKind]) -> StoreSpec:
        spec = self._spec(store)[1]
        if spec.kind not in kinds:
            kind = spec.kind.replace("_", "-")
            raise QueryError(f"store {store!r} is a {kind} store, which does not support this query")
        return spec

    def _tasks_of(self, store: str) -> SubTopology:
        owner = self._spec(store)[0]
        if isinstance(owner, GlobalTableNode):
            raise QueryError(
                f"{store!r} is a global table: no task holds it, and every executor has all of it; ask for its rows "
                "without asking for tasks"
            )
        return owner

    def _spec(self, store: str) -> tuple[Owner, StoreSpec]:
        if self._application.topology.has_made_up_names:  # they are those of the newest commit
            newest = newest_commit(self._warehouse.parent, self._application.id)
            self._topology = self._application.over(newest).topology
        stores: dict[str, tuple[Owner, StoreSpec]] = {
            spec.name: (sub_topology, spec)
            for sub_topology in self._topology.sub_topologies
            for spec in sub_topology.stores
        }
        stores |= {table.store.name: (table, table.store) for table in self._topology.global_tables}
        if (stored := self._topology.stored(store)) not in stores:
            raise QueryError(f"{self._application.id} has no store {store!r}; it has {', '.join(stores) or 'none'}")
        return stores[stored]


_POSITION = Query(timeout=timedelta(seconds=_HEARS_WITHIN_S))


def _asked(
    question: Question, locations: Iterable[Location], answers: dict[str, TaskAnswer], *, allow_stale: bool
) -> dict[Location, str]:
    """Ask for each task whoever has its stores, or else its standbys, and put what they answer into ``answers``.
    Returns the tasks for which nobody answers, and why."""
    together: dict[TaskStores | None, list[Location]] = {}
    for location in locations:
        together.setdefault(location.stores, []).append(location)
    away: dict[Location, str] = {}
    for stores, these in together.items():
        found: list[TaskAnswer] = []
        whys = {location.task: location.why for location in these}
        if stores is not None:
            try:
                found = stores.answer(question, [location.task for location in these])
            except AwayError as error:
                whys = dict.fromkeys(whys, str(error))
        by_task = {answer.task: answer for answer in found}
        for location in these:
            answer = by_task.get(location.task)
            if answer is None or not (answer.has_state or not location.has_state):
                why = whys[location.task] if answer is None else "it has no readable state at the moment"
                answer = _stale(question, location) if allow_stale else None
                if answer is None:
                    away[location] = why
                    continue
            answers[location.task] = answer
    return away


def _stale(question: Question, location: Location) -> TaskAnswer | None:
    """What the first standby of a task answers that can."""
    for standby in location.standbys:
        try:
            (answer,) = standby.answer(dataclasses.replace(question, of_standbys=True), [location.task])
        except AwayError:
            continue
        if answer.has_state:
            return answer
    return None


def _nobody_answers(away: Mapping[Location, str], query: Query) -> QueryError:
    location, why = next(iter(away.items()))
    others = f" (and {len(away) - 1} more)" if len(away) > 1 else ""
    stale = ""
    if location.standbys and not query.allow_stale:
        stale = ", or take what standbys have by --allow-stale, in Python by Query(allow_stale=True)"
    return QueryError(f"nobody answers for {who(location.task)}{others}: {why}; try again in a moment{stale}")


def key_row(spec: StoreSpec, key: Key) -> pl.DataFrame:
    """A key as a row of the columns that users know (``key_columns``).

    Raises:
        QueryError: The key does not fit the columns.
    """
    try:
        return key_frame(key_columns(spec), key)
    except TypeError as error:
        raise QueryError(f"store {spec.name!r}: {error}") from None


def prefix_row(spec: StoreSpec, prefix: Any) -> pl.DataFrame:
    """The start of a key's first column, or a tuple of its first columns, as a row of these columns.

    Raises:
        QueryError: The prefix does not fit the columns.
    """
    values = prefix if isinstance(prefix, tuple) else (prefix,)
    columns = dict(list(key_columns(spec).items())[: len(values)])
    try:
        return key_frame(columns, values)
    except TypeError as error:
        raise QueryError(f"store {spec.name!r}: {error}") from None


def _bound(spec: StoreSpec, key: Key | None) -> pl.DataFrame | None:
    return None if key is None else key_row(spec, key)


def _entering(keys: pl.DataFrame, entrance: RowType) -> pl.DataFrame:
    """A store's key, or its first columns, under the column names of the topic or edge that it comes from."""
    values = [value for name, value in keys.row(0, named=True).items() if not name.startswith("_")]
    return pl.DataFrame([values[: len(entrance.columns)]], schema=entrance.columns, orient="row")


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1)
