"""Read-only views of the stores under the topology test driver, with finished values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars as pl

from weir.pipelines.operators.functions import Windowed
from weir.pipelines.serdes.row_type import key_frame
from weir.pipelines.serdes.shapes import TIME
from weir.pipelines.serdes.values import as_datetimes
from weir.pipelines.topology.nodes import RecordType
from weir.state.frames import framed, picked
from weir.state.stores.specs import GONE

Read = Callable[[], pl.DataFrame]


class ReadOnlyKeyValueStore:
    """Key to value. A scalar value is itself, any other a dictionary of the value columns.

    A key of one column is that column's value; a key of several columns is the object that functions get, a tuple in
    their order, or a dictionary. Anything else raises a ``TypeError`` that names the columns. A time after the year
    9999 is ``datetime.max`` in UTC.
    """

    def __init__(self, read: Read, record: RecordType) -> None:
        self._read, self._record = read, record

    def get(self, key: Any) -> Any:
        """The value of ``key``, which is a ``Windowed`` after a windowed aggregation; None where there is none.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> table = orders.group_by_key().agg("spent", cents=Sum("cents"))
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     store = driver.get_key_value_store("spent")
            ...     store.get("ann"), store.get("bob")
            ({'cents': 1200}, None)
        """
        return next(iter(values_of(self._record, self._of(key))), None)

    def all(self) -> list[tuple[Any, Any]]:
        """Keys and values, in key order.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> table = orders.group_by_key().agg("spent", cents=Sum("cents"))
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("bob", 200), ("ann", 500)])
            ...     driver.get_key_value_store("spent").all()
            [('ann', {'cents': 500}), ('bob', {'cents': 200})]
        """
        return self._entries(self._read())

    def get_with_timestamp(self, key: Any) -> tuple[Any, datetime] | None:
        """The value of ``key`` and the greatest event time of the records behind it; None where there is none.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> table = orders.group_by_key().agg("spent", cents=Sum("cents"))
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     driver.create_input_topic("orders", start=nine).pipe_input("ann", 500)
            ...     driver.get_key_value_store("spent").get_with_timestamp("ann")
            ({'cents': 500}, datetime.datetime(2026, 1, 1, 9, 0, tzinfo=...))
        """
        rows = self._of(key)
        return next(zip(values_of(self._record, rows), rows.get_column("_ts").cast(TIME).to_list(), strict=True), None)

    def approximate_num_entries(self) -> int:
        """How many keys the store holds; here the number is exact.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> table = orders.group_by_key().agg("spent", cents=Sum("cents"))
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 200)])
            ...     driver.get_key_value_store("spent").approximate_num_entries()
            2
        """
        return self._read().height

    def _of(self, key: Any) -> pl.DataFrame:
        """The row of a key, if there is one."""
        if not self._record.is_windowed:
            return of_key(self._read(), self._record, key)
        if not isinstance(key, Windowed):
            raise TypeError(f"{key!r} is not a Windowed(key, window_start, window_end); the keys of this store are")
        rows = of_key(self._read(), self._record, key.key)
        is_meant = [
            (found.window_start, found.window_end) == (key.window_start, key.window_end)
            for found in self._record.key_type.to_objects(rows)
        ]
        return rows.filter(pl.Series(is_meant, dtype=pl.Boolean()))

    def _entries(self, rows: pl.DataFrame) -> list[tuple[Any, Any]]:
        return list(zip(self._record.key_type.to_objects(rows), values_of(self._record, rows), strict=True))


class ReadOnlyWindowStore(ReadOnlyKeyValueStore):
    """Key and window to value; a window's state is dropped when the window closes."""

    def fetch(self, key: Any, window_start: datetime) -> Any:
        """The value of the window of ``key`` that starts at ``window_start``; None where there is none.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> windows = TimeWindows.of_size_with_no_grace(timedelta(hours=1))
            >>> hourly = orders.windowed_by(windows).count("hourly")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     driver.create_input_topic("orders", start=nine).pipe_input("ann", 500)
            ...     driver.get_window_store("hourly").fetch("ann", nine)
            1
        """
        return next((value for windowed, value in self.fetch_all(key) if windowed.window_start == window_start), None)

    def fetch_all(self, key: Any) -> list[tuple[Windowed, Any]]:
        """The open windows of ``key`` and their values, by start.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> windows = TimeWindows.of_size_with_no_grace(timedelta(hours=1))
            >>> hourly = orders.windowed_by(windows).count("hourly")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     driver.create_input_topic("orders", start=nine).pipe_input("ann", 500)
            ...     ((window, count),) = driver.get_window_store("hourly").fetch_all("ann")
            ...     window.window_start.hour, window.window_end.hour, count
            (9, 10, 1)
        """
        return self._entries(of_key(self._read(), self._record, key))


class ReadOnlySessionStore(ReadOnlyKeyValueStore):
    """Key and session to value, by key, then end; a session's state is dropped when the session closes."""

    def fetch(self, key: Any) -> list[tuple[Windowed, Any]]:
        """The open sessions of ``key`` and their values.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> gap = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=30))
            >>> visits = orders.windowed_by(gap).count("visits")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     topic = driver.create_input_topic("orders", start=nine, auto_advance=timedelta(minutes=10))
            ...     topic.pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     ((visit, count),) = driver.get_session_store("visits").fetch("ann")
            ...     visit.window_end - visit.window_start, count
            (datetime.timedelta(seconds=600), 2)
        """
        return self._entries(of_key(self._read(), self._record, key))

    def fetch_session(self, key: Any, start: datetime, end: datetime) -> Any:
        """The value of the session of ``key`` with these bounds; None where there is none.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> gap = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=30))
            >>> visits = orders.windowed_by(gap).count("visits")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     driver.create_input_topic("orders", start=nine).pipe_input("ann", 500)
            ...     driver.get_session_store("visits").fetch_session("ann", nine, nine)
            1
        """
        return self.get(Windowed(key, start, end))


class ReadOnlyListStore:
    """Key to a list of values; keys and values as for a ``ReadOnlyKeyValueStore``."""

    def __init__(self, read: Read, record: RecordType) -> None:
        self._read, self._record = read, record

    def get(self, key: Any) -> list[Any]:
        """The list of ``key``; empty if there is none.

        Examples:
            >>> class Remember(Processor[str, int, None, None]):
            ...     stores = (ListStore("cents_of", key=str, value=int),)
            ...     def init(self, context):
            ...         self.cents_of = context.state_store("cents_of")
            ...     def process(self, record):
            ...         self.cents_of.append(record.key, record.value)
            >>> builder = StreamsBuilder()
            >>> remembered = builder.stream("orders", key=String("customer"), value=Int64("cents")).process(Remember)
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     driver.get_list_store("cents_of").get("ann"), driver.get_list_store("cents_of").get("bob")
            ([500, 700], [])
        """
        return values_of(self._record, of_key(self._read(), self._record, key))


class ReadOnlyVersionedStore:
    """Key and time to the value that was valid then; keys as for a ``ReadOnlyKeyValueStore``."""

    def __init__(self, read: Read, record: RecordType) -> None:
        self._read, self._record = read, record

    def get(self, key: Any, as_of: datetime | None = None) -> Any:
        """The newest value of ``key``, or the one valid at ``as_of``; None where there was none or it was deleted.

        Examples:
            >>> builder = StreamsBuilder()
            >>> day = timedelta(days=1)
            >>> prices = builder.table(
            ...     "prices", key=String("item"), value=Int64("cents"), store="prices", history_retention=day
            ... )
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     topic = driver.create_input_topic("prices", start=nine, auto_advance=timedelta(hours=1))
            ...     topic.pipe_key_value_list([("tea", 300), ("tea", 350)])
            ...     store = driver.get_versioned_store("prices")
            ...     store.get("tea"), store.get("tea", as_of=nine + timedelta(minutes=30))
            (350, 300)
        """
        held = [(value, is_gone) for value, since, is_gone in self._versions(key) if as_of is None or since <= as_of]
        return None if not held or held[-1][1] else held[-1][0]

    def versions(self, key: Any) -> list[tuple[datetime, Any]]:
        """The values of ``key``, each with the time from which it is valid, oldest first; None where it was deleted.

        Examples:
            >>> builder = StreamsBuilder()
            >>> day = timedelta(days=1)
            >>> prices = builder.table(
            ...     "prices", key=String("item"), value=Int64("cents"), store="prices", history_retention=day
            ... )
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     topic = driver.create_input_topic("prices", start=nine, auto_advance=timedelta(hours=1))
            ...     topic.pipe_key_value_list([("tea", 300), ("tea", None)])
            ...     [(since.hour, cents) for since, cents in driver.get_versioned_store("prices").versions("tea")]
            [(9, 300), (10, None)]
        """
        return [(since, None if is_gone else value) for value, since, is_gone in self._versions(key)]

    def _versions(self, key: Any) -> list[tuple[Any, datetime, bool]]:
        rows = of_key(self._read(), self._record, key)
        return list(
            zip(
                values_of(self._record, rows),
                rows.get_column("valid_from").to_list(),
                rows.get_column(GONE).to_list(),
                strict=True,
            )
        )


def of_key(rows: pl.DataFrame, record: RecordType, key: Any) -> pl.DataFrame:
    """The rows of a key, in their order; raises ``TypeError`` when the key does not fit its columns."""
    wanted = key_frame(record.key.columns, key)
    return rows.join(wanted, on=wanted.columns, how="semi", nulls_equal=True, maintain_order="left")


def values_of(record: RecordType, rows: pl.DataFrame) -> list[Any]:
    """One value per row: a scalar as it is, any other as a dictionary of the value columns."""
    if record.value.is_scalar:
        return record.value.to_objects(rows)
    return dictionaries(picked(rows, record.value.columns))


def dictionaries(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """One per row; a time after the year 9999, such as the end of a window, is ``datetime.max`` in UTC."""
    return framed([as_datetimes(column) for column in rows.get_columns()]).to_dicts()
