"""How long a suppression holds updates back, and in what buffer (KIP-328)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, Self

from weir.pipelines.arguments import not_negative_ms, positive_ms, whole_number
from weir.pipelines.dsl.graph import Materialized, check_name, store_options
from weir.pipelines.errors import TopologyError
from weir.pipelines.store_options import StoreOptions


@dataclass(frozen=True, kw_only=True)
class BufferConfig:
    """How much a suppression may hold: a number of keys, or of bytes of keys and rows. Above its limit it is full.

    Whatever the limits, the buffer is where the rest of the state is, on disk by default; memory does not grow with it.
    """

    record_limit: int | None = None
    byte_limit: int | None = None

    @staticmethod
    def max_records(limit: int) -> EagerBufferConfig:
        """At most ``limit`` keys; the oldest are forwarded early when it is full.

        Examples:
            >>> BufferConfig.max_records(1_000)
            EagerBufferConfig(record_limit=1000, byte_limit=None)
        """
        return EagerBufferConfig().with_max_records(limit)

    @staticmethod
    def max_bytes(limit: int) -> EagerBufferConfig:
        """At most ``limit`` bytes; the oldest are forwarded early when it is full.

        Examples:
            >>> BufferConfig.max_bytes(1 << 20)
            EagerBufferConfig(record_limit=None, byte_limit=1048576)
        """
        return EagerBufferConfig().with_max_bytes(limit)

    @staticmethod
    def unbounded() -> StrictBufferConfig:
        """No limit; every update waits until it is due.

        Examples:
            >>> BufferConfig.unbounded().limits
            (None, None)
        """
        return StrictBufferConfig()

    def with_max_records(self, limit: int) -> Self:
        """The same with at most ``limit`` keys.

        Examples:
            >>> BufferConfig.max_bytes(1 << 20).with_max_records(1_000)
            EagerBufferConfig(record_limit=1000, byte_limit=1048576)
        """
        return replace(self, record_limit=whole_number(limit, "max_records", 0))

    def with_max_bytes(self, limit: int) -> Self:
        """The same with at most ``limit`` bytes.

        Examples:
            >>> BufferConfig.max_records(1_000).with_max_bytes(1 << 20)
            EagerBufferConfig(record_limit=1000, byte_limit=1048576)
        """
        return replace(self, byte_limit=whole_number(limit, "max_bytes", 0))

    def with_no_bound(self) -> StrictBufferConfig:
        """The same without limits.

        Examples:
            >>> BufferConfig.max_records(1_000).with_no_bound()
            StrictBufferConfig(record_limit=None, byte_limit=None, when_full='shut_down')
        """
        return StrictBufferConfig()

    def shut_down_when_full(self) -> StrictBufferConfig:
        """Stop the run when a limit is exceeded; what was committed before stays.

        Examples:
            >>> strict = BufferConfig.max_records(1).shut_down_when_full()
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.suppress(Suppressed.until_time_limit(timedelta(hours=1), strict)).to_delta("hourly")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("salt", 1)])
            Traceback (most recent call last):
            ...
            weir.BufferFullError: ...: the buffer has exceeded its limit of 1 record and shuts down when full; ...
        """
        return StrictBufferConfig(record_limit=self.record_limit, byte_limit=self.byte_limit)

    def spill_to_disk_when_full(self) -> StrictBufferConfig:
        """Grow beyond the limits on disk, where the buffer is in any case.

        Examples:
            >>> BufferConfig.max_records(1_000).spill_to_disk_when_full()
            StrictBufferConfig(record_limit=1000, byte_limit=None, when_full='spill_to_disk')
        """
        return StrictBufferConfig(record_limit=self.record_limit, byte_limit=self.byte_limit, when_full="spill_to_disk")

    def emit_early_when_full(self) -> EagerBufferConfig:
        """Forward the oldest when a limit is exceeded, so that a key may have more than one update.

        Examples:
            >>> eager = BufferConfig.max_records(1).emit_early_when_full()
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.suppress(Suppressed.until_time_limit(timedelta(hours=1), eager)).to_delta("hourly")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> for minute, item in enumerate(["tea", "salt"]):
            ...     driver.create_input_topic("stock").pipe_input(item, 2, timestamp_ms=minute * 60_000)
            >>> driver.create_output_table("hourly").read_rows()
            [{'item': 'tea', 'pieces': 2}]
        """
        return EagerBufferConfig(record_limit=self.record_limit, byte_limit=self.byte_limit)

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The limits of keys and of bytes that have an effect.

        Examples:
            >>> BufferConfig.max_records(1_000).limits
            (1000, None)
        """
        return self.record_limit, self.byte_limit


@dataclass(frozen=True, kw_only=True)
class StrictBufferConfig(BufferConfig):
    """A buffer that never forwards an update early."""

    when_full: Literal["shut_down", "spill_to_disk"] = "shut_down"

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The limits of keys and of bytes that have an effect: none if the buffer may spill.

        Examples:
            >>> BufferConfig.max_records(1_000).spill_to_disk_when_full().limits
            (None, None)
        """
        return (None, None) if self.when_full == "spill_to_disk" else (self.record_limit, self.byte_limit)


@dataclass(frozen=True, kw_only=True)
class EagerBufferConfig(BufferConfig):
    """A buffer that keeps within its limits by forwarding the oldest updates early."""


@dataclass(frozen=True, kw_only=True)
class Suppressed:
    """How long ``KTable.suppress`` holds updates back, and in what buffer."""

    buffer: BufferConfig
    limit_ms: int | None = None
    """The time limit; None means until the window closes."""
    name: str | None = None
    options: StoreOptions | None = None
    """Of its buffer, if it has a name."""
    idle_after_ms: int | None = None
    restarts: bool = False
    """Whether each update of a key restarts its time limit."""

    @classmethod
    def until_window_closes(cls, buffer: StrictBufferConfig) -> Suppressed:
        """Forward a window's result once, when stream time closes the window, and never a tombstone.

        Raises:
            TopologyError: The buffer is not strict: a result that is forwarded early is not final.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> minutes = clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
            >>> final = Suppressed.until_window_closes(BufferConfig.unbounded())
            >>> minutes.count("by_minute").suppress(final).to_delta("final")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> for seconds in (0, 59, 60):
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/", timestamp_ms=seconds * 1000)
            >>> driver.create_output_table("final").read_values_to_list()
            [2]
        """
        if not isinstance(buffer, StrictBufferConfig):
            raise TopologyError(
                f"until_window_closes got {buffer!r}; final results need a strict buffer: "
                "BufferConfig.unbounded(), or a limit with shut_down_when_full() or "
                "spill_to_disk_when_full()"
            )
        return cls(buffer=buffer)

    @classmethod
    def until_time_limit(cls, limit: timedelta, buffer: BufferConfig, *, restart_on_update: bool = False) -> Suppressed:
        """Forward a key's newest update once stream time is ``limit`` past the first one that was held back.

        Further updates replace what is held and do not restart the limit. Tombstones are forwarded. For tables of
        windows, too, the limit counts from the update's time, not from the start of the window.

        With ``restart_on_update`` each update restarts it (debouncing): the newest update is forwarded once stream time
        is ``limit`` past the greatest timestamp of those that were held back, so a key that is updated more often than
        that is held for as long. An out-of-order update replaces the value and leaves the limit as it is.

        Raises:
            TopologyError: The limit is negative or no duration, or the buffer is no ``BufferConfig``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> each_hour = Suppressed.until_time_limit(timedelta(hours=1), BufferConfig.unbounded())
            >>> stock.suppress(each_hour).to_delta("hourly")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> for minute, item, pieces in ((0, "tea", 5), (20, "tea", 4), (60, "salt", 1)):
            ...     driver.create_input_topic("stock").pipe_input(item, pieces, timestamp_ms=minute * 60_000)
            >>> driver.create_output_table("hourly").read_rows()
            [{'item': 'tea', 'pieces': 4}]

            Once there was no update for an hour:

            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> quiet = Suppressed.until_time_limit(
            ...     timedelta(hours=1), BufferConfig.unbounded(), restart_on_update=True
            ... )
            >>> stock.suppress(quiet).to_delta("settled")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> topic, table = driver.create_input_topic("stock"), driver.create_output_table("settled")
            >>> for minute, item, pieces in ((0, "tea", 5), (20, "tea", 4), (60, "salt", 1)):
            ...     topic.pipe_input(item, pieces, timestamp_ms=minute * 60_000)
            >>> table.read_rows()
            []
            >>> topic.pipe_input("salt", 2, timestamp_ms=80 * 60_000)
            >>> table.read_rows()
            [{'item': 'tea', 'pieces': 4}]
        """
        if not isinstance(buffer, BufferConfig):
            raise TopologyError(
                f"until_time_limit got {buffer!r}; pass BufferConfig.unbounded(), .max_records(...) or .max_bytes(...)"
            )
        return cls(buffer=buffer, limit_ms=not_negative_ms(limit, "time limit"), restarts=restart_on_update)

    def with_idle_after(self, idle_after: timedelta) -> Suppressed:
        """The same, but while nothing arrives, the wall clock releases updates; see ``KGroupedStream.windowed_by``.

        A suppression until windows close then closes them for their aggregation too: the results are final, and
        records that arrive later are late.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> minutes = clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
            >>> final = Suppressed.until_window_closes(BufferConfig.unbounded()).with_idle_after(timedelta(seconds=30))
            >>> minutes.count("by_minute").suppress(final).to_delta("final")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/", timestamp_ms=0)
            >>> driver.advance_wall_clock_time(timedelta(seconds=95))
            >>> driver.create_output_table("final").read_values_to_list()
            [1]
        """
        return replace(self, idle_after_ms=positive_ms(idle_after, "idle_after"))

    def with_name(self, name: str | Materialized) -> Suppressed:
        """The same with a name of its own, so that adding or removing it leaves the numbers in other names alone.

        The store is then ``<name>-store``; but a name that Weir made up for a store means that one (docs/migration.md).
        A ``Materialized`` puts it in memory, or leaves its changelog out (``logging=False, on_loss="empty"``): if it is
        lost, what was held is never forwarded.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> hourly = Suppressed.until_time_limit(timedelta(hours=1), BufferConfig.unbounded()).with_name("hourly")
            >>> stock.suppress(hourly).to_delta("hourly_stock")
            >>> "Processor: hourly (stores: [hourly-store])" in builder.build().describe()
            True
        """
        if not isinstance(name, Materialized):
            return replace(self, name=check_name("suppression", name), options=None)
        return replace(self, name=name.name, options=store_options("held updates", name))
