"""What a program subclasses to write a processor, and what a processor is given to work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import polars as pl

from weir.pipelines.processors.records import FixedKeyRecord, Record, RecordMetadata
from weir.pipelines.processors.stores import StoreDeclaration

KIn = TypeVar("KIn")
VIn = TypeVar("VIn")
KOut = TypeVar("KOut")
VOut = TypeVar("VOut")


class Punctuation(StrEnum):
    """The clock of a punctuation or timer."""

    STREAM_TIME = "stream_time"
    """The greatest event time that has reached the processor in this task."""
    WALL_CLOCK_TIME = "wall_clock_time"

    @classmethod
    def _missing_(cls, value: object) -> Punctuation:
        raise TypeError(f"the clock is {value!r}; pass Punctuation.STREAM_TIME or Punctuation.WALL_CLOCK_TIME")


class Cancellable(Protocol):
    """A punctuation that was scheduled."""

    def cancel(self) -> None:
        """Call it no more; cancelling again does nothing."""
        ...


class ProcessorContext(Protocol[KOut, VOut]):
    """What a processor may do. Everything but the properties of the task works only while Weir calls the processor."""

    @property
    def task_id(self) -> str:
        """The task, for example ``0_3``: its sub-topology and its partition."""
        ...

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Where the record in process was read, or the record that it is a result of; None behind a repartition, in
        batches, punctuations and timers, and in ``close``."""
        ...

    @property
    def current_stream_time(self) -> datetime | None:
        """The greatest event time that has reached the processor in this task; None before the first record."""
        ...

    @property
    def current_system_time(self) -> datetime:
        """The wall clock of the epoch."""
        ...

    def forward(self, record: Record[KOut, VOut] | FixedKeyRecord[KOut, VOut], child: str | None = None) -> None:
        """Send a record to all nodes behind the processor, or to the one that is named ``child``."""
        ...

    def forward_rows(self, rows: pl.DataFrame, child: str | None = None) -> None:
        """Of a batch processor: send rows, as ``BatchProcessor.process_batch`` returns them, to all nodes behind it or
        to the one that is named ``child``. They come before the rows that the call returns."""
        ...

    def schedule(
        self, interval: timedelta, punctuation: Punctuation, call: Callable[[datetime], object]
    ) -> Cancellable:
        """Call ``call`` with the clock's time once per ``interval``; intervals that were missed are one call.

        By stream time, calls are due at multiples of the interval since 1970, and the first is due with the first
        record; by the wall clock, the first is due after one interval. Of what ``init`` schedules, the state keeps when
        it is due next, or that it was cancelled, under the name of ``call``: a restart changes nothing, and ``init``
        may schedule in any order, and only while a condition holds. Those of the same name are told apart by their
        order.
        """
        ...

    def schedule_once(self, at: datetime, punctuation: Punctuation, call: Callable[[datetime], object]) -> Cancellable:
        """Call ``call`` once, when the clock reaches ``at``. It is forgotten when the task moves or restarts, unless
        ``init`` schedules it: then the state keeps, under its time, whether it was called. Timers are kept."""
        ...

    def timer(self, key: Any, at: datetime, punctuation: Punctuation = Punctuation.STREAM_TIME) -> None:
        """Call the processor's ``on_timer`` for ``key`` when the clock reaches ``at``.

        A key has one timer per clock, and setting it again moves it. Timers are kept with the state. One that is due
        when it is set is called with the next record, or by the wall clock in the next epoch.
        """
        ...

    def timers(self, rows: pl.DataFrame, at: pl.Expr, punctuation: Punctuation = Punctuation.STREAM_TIME) -> None:
        """Set the timers of the keys in ``rows``, in order, to the times that ``at`` gives: in ms, or in UTC."""
        ...

    def cancel_timer(self, key: Any, punctuation: Punctuation = Punctuation.STREAM_TIME) -> None:
        """Forget the timer of ``key``, if there is one."""
        ...

    def cancel_timers(self, rows: pl.DataFrame, punctuation: Punctuation = Punctuation.STREAM_TIME) -> None:
        """Forget the timers of the keys in ``rows``."""
        ...

    def commit(self) -> None:
        """Ask for a commit once this epoch is over."""
        ...

    def state_store(self, name: str) -> Any:
        """The store that the processor has declared under this name; keep it for as long as you like.

        Raises:
            LookupError: The processor has no such store.
        """
        ...


class _Base(Generic[KOut, VOut]):
    stores: ClassVar[Sequence[StoreDeclaration | str]] = ()
    """The stores that the processor keeps, and the names of those that it shares."""

    def init(self, context: ProcessorContext[KOut, VOut]) -> None:
        """Called once before the first record, again whenever the task moves or its state was rolled back."""

    def close(self) -> None:
        """Called when the application stops; what it forwards belongs to the last commit. After a kill it did not run,
        and the records since the last commit are processed again."""


class Processor(_Base[KOut, VOut], Generic[KIn, VIn, KOut, VOut]):
    """Gets each record, and forwards any records.

    One instance serves one task. Keep what must survive in stores: the instance is made anew when the task moves, and
    when an epoch did not count.

    Examples:
        >>> class Longest(Processor[str, str, str, int]):
        ...     stores = (KeyValueStore("longest", key=str, value=int),)
        ...     def init(self, context):
        ...         self.context, self.longest = context, context.state_store("longest")
        ...     def process(self, record):
        ...         if len(record.value) > (self.longest.get(record.key) or 0):
        ...             self.longest.put(record.key, len(record.value))
        ...             self.context.forward(record.with_value(len(record.value)))
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=String("author"), value=String("word"))
        >>> words.process(Longest).to_delta("longest_words")
        >>> driver = TopologyTestDriver(Application("example", builder))
        >>> driver.create_input_topic("words").pipe_key_value_list([("ann", "tea"), ("ann", "a"), ("ann", "coffee")])
        >>> driver.create_output_table("longest_words").read_key_values_to_list()
        [('ann', 3), ('ann', 6)]
    """

    def process(self, record: Record[KIn, VIn]) -> None:
        """Called with every record, in order."""
        raise NotImplementedError

    def on_timer(self, record: Record[KIn, None]) -> None:
        """Called when a key's timer is due, with the key and the time that the timer was set to."""
        raise NotImplementedError


class FixedKeyProcessor(_Base[KIn, VOut], Generic[KIn, VIn, VOut]):
    """A processor that cannot change keys, so that what follows needs no repartition."""

    def process(self, record: FixedKeyRecord[KIn, VIn]) -> None:
        """Called with every record, in order."""
        raise NotImplementedError

    def on_timer(self, record: FixedKeyRecord[KIn, None]) -> None:
        """Called when a key's timer is due, with the key and the time that the timer was set to."""
        raise NotImplementedError


class BatchProcessor(_Base[KOut, VOut], Generic[KIn, VIn, KOut, VOut]):
    """Gets records as columns, at column speed.

    A batch is what has arrived, and where it is cut does not show if ``process_batch`` gives what a loop over its rows
    would give. What stream time makes due comes in between: a batch ends with the record that makes a punctuation due,
    and the punctuation follows. Timers by stream time are called after the record that takes it to the next multiple
    of ``timer_resolution``, or past it; if it has become several rows, after the last of them.

    Examples:
        >>> class Length(BatchProcessor[str, str, str, int]):
        ...     def process_batch(self, rows):
        ...         return rows.with_columns_seq(value=col("word").str.len_chars())
        >>> builder = StreamsBuilder()
        >>> builder.stream("words", key=String("author"), value=String("word")).process(Length).to_delta("lengths")
        >>> driver = TopologyTestDriver(Application("example", builder))
        >>> driver.create_input_topic("words").pipe_input("ann", "tea")
        >>> driver.create_output_table("lengths").read_key_values_to_list()
        [('ann', 3)]
    """

    timer_resolution: ClassVar[timedelta] = timedelta(seconds=1)
    """How exact timers by stream time are. Batches end at each multiple of it, so a finer one makes them smaller."""

    def process_batch(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        """Called with records in order: key columns, value columns, ``_ts`` (Int64, ms), ``_deleted`` and the columns
        of their place, ``_partition`` and ``_offset``.

        Returns what to forward, None for nothing: the columns of the declared key and value, and ``_ts``; others are
        ignored. Rows that keep ``_deleted`` and the columns of their place stay tombstones and keep their place.
        Without ``_deleted`` they are values. Without a place they have those of the batch, if they are as many and have
        the same times, and else that of its last record: a later processor takes them for rows of that one record.
        """
        raise NotImplementedError

    def on_timers(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        """Called with the keys whose timers are due, by time, then key: key columns and ``_ts`` (Int64, ms), the times
        that the timers were set to. Returns what to forward, as ``process_batch``."""
        raise NotImplementedError
