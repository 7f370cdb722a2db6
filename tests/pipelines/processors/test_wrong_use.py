"""What processors must not do is refused, with the way out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Thread

import polars as pl
import pytest

from weir import (
    Application,
    BatchProcessor,
    FixedKeyProcessor,
    FixedKeyRecord,
    Int64,
    KeyValueStore,
    ListStore,
    Processor,
    Punctuation,
    Record,
    SessionStore,
    StreamsBuilder,
    String,
    TopologyError,
    UserFunctionError,
    VersionedKeyValueStore,
    WindowStore,
)
from weir.testing import TopologyTestDriver

SECOND = timedelta(seconds=1)
NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)


def stream():
    builder = StreamsBuilder()
    return builder, builder.stream("numbers", key=String("user"), value=Int64("n"))


def processor(action, base=Processor[str, int, str, int], **names):
    """A class of processors that does ``action(self, record or rows)``."""

    def init(self, context):
        self.context = context
        self.counts = context.state_store("counts")

    method = "process_batch" if base.__origin__ is BatchProcessor else "process"
    stores = (KeyValueStore("counts", key=str, value=int),)
    parts = {"stores": stores, "init": init, method: action, "__orig_bases__": (base,), **names}
    return type("Mine", (base.__origin__,), parts)


def result_of(cls):
    builder, numbers = stream()
    process = numbers.process_values if issubclass(cls, FixedKeyProcessor) else numbers.process
    process(cls, name="mine").to_delta("out")
    with TopologyTestDriver(Application("wrong", builder)) as driver:
        driver.create_input_topic("numbers").pipe_input("ann", 5, timestamp=NINE)
        return driver.create_output_table("out").read_key_values_to_list()


def in_thread(call):
    """``call`` once the processor is no longer called; what it raised."""
    found = []

    def run():
        try:
            call()
        except Exception as error:
            found.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


FIXED, BATCH = FixedKeyProcessor[str, int, int], BatchProcessor[str, int, str, int]
ROWS = pl.DataFrame({"user": ["ann"], "value": [1], "_ts": [0]})


@pytest.mark.parametrize(
    ("action", "base", "message"),
    [
        (
            lambda self, record: self.context.forward("ann"),
            None,
            r"forward takes a Record, but got 'ann'; pass Record\(key, value, timestamp\)",
        ),
        (
            lambda self, record: self.context.forward(Record("ann", 1, NINE)),
            FIXED,
            r"forward takes a FixedKeyRecord, but got Record\(.*\); pass record.with_value\(...\)",
        ),
        (
            lambda self, record: self.context.forward(record.with_value("five")),
            None,
            "it forwarded a value of another type than it declares: the column 'value' is declared int, and got str",
        ),
        (
            lambda self, record: self.context.forward(record.with_key(5)),
            None,
            "it forwarded a key of another type than it declares: the column 'user' is declared str",
        ),
        (
            lambda self, record: self.context.forward(record.with_timestamp(datetime(2026, 1, 1))),
            None,
            r"has no time zone; use UTC, for example datetime\(2026, 1, 1, tzinfo=UTC\)",
        ),
        (
            lambda self, record: self.context.forward(Record("ann", 1, 5)),
            None,
            r"5 is not a time; pass one, for example datetime\(2026, 1, 1, tzinfo=UTC\)",
        ),
        (
            lambda self, record: self.context.forward(record, "Other"),
            None,
            "names the child 'Other', but the processor is followed by 'out'; a processor has",
        ),
        (
            lambda self, record: self.context.forward(record),
            Processor[str, int, None, None],
            "its types say that it forwards nothing: the last ones are None",
        ),
        (
            lambda self, record: self.context.forward_rows(ROWS),
            None,
            r"forward_rows is for batch processors; call forward\(record\)",
        ),
        (
            lambda self, rows: self.context.forward(Record("ann", 1, NINE)),
            BATCH,
            r"a batch processor forwards rows; return them, or call forward_rows\(frame\)",
        ),
        (
            lambda self, rows: rows.lazy(),
            BATCH,
            r"gives a polars DataFrame, but got LazyFrame; call .collect\(\) on it",
        ),
        (lambda self, rows: [1], BATCH, "gives a polars DataFrame, but got list"),
        (lambda self, rows: rows, BATCH, "the rows to forward lack 'value'; they have user, n, _ts"),
        (
            lambda self, rows: rows.select("user", value="n"),
            BATCH,
            r"lack '_ts'; they have user, value, and each needs its time in _ts \(Int64, ms\)",
        ),
        (
            lambda self, rows: rows.select("user", value="n", _ts=pl.lit(None, pl.Int64)),
            BATCH,
            r"have nulls in _ts; give each row its time \(Int64, ms\)",
        ),
        (
            lambda self, rows: rows.with_columns(value=pl.col("n") / 2),
            BATCH,
            "the column 'value' as Float64, but it is declared Int64; cast it",
        ),
        (
            lambda self, record: self.context.timer(record.key, NINE),
            None,
            r"sets a timer, but has nothing to call when it is due; write def on_timer\(self, record\)",
        ),
        (
            lambda self, rows: self.context.timers(rows, pl.col("_ts")),
            BATCH,
            r"has nothing to call when it is due; write def on_timers\(self, rows\)",
        ),
        (lambda self, record: self.context.state_store("sums"), None, "has no store 'sums'; its stores are 'counts'"),
        (
            lambda self, record: self.counts.put(5, 5),
            None,
            "store 'counts' got the key 5, which is of another type",
        ),
        (
            lambda self, record: self.counts.put("ann", "five"),
            None,
            "store 'counts' got the value 'five', which is of another type",
        ),
        (lambda self, record: self.counts.get(None), None, "store 'counts' has no row for a null key"),
        (
            lambda self, record: self.context.schedule(SECOND, "stream", print),
            None,
            r"the clock is 'stream'; pass Punctuation.STREAM_TIME or Punctuation.WALL_CLOCK_TIME",
        ),
        (
            lambda self, record: self.context.schedule(SECOND, Punctuation.STREAM_TIME, None),
            None,
            "the punctuation is to call None; pass a function of the time",
        ),
        (
            lambda self, record: self.context.schedule(0 * SECOND, "stream_time", print),
            None,
            "at least one millisecond",
        ),
    ],
)
def test_a_processor_is_told_what_it_does_wrong(action, base, message):
    with pytest.raises(UserFunctionError, match=message):
        result_of(processor(action, base or Processor[str, int, str, int]))


@dataclass(frozen=True)
class Acc:
    total: int


def test_a_value_that_is_no_dataclass_is_told_what_it_lacks():
    def puts(self, record):
        self.context.state_store("sums").put("ann", 5)

    stores = (KeyValueStore("counts", key=str, value=int), KeyValueStore("sums", key=str, value=Acc))
    with pytest.raises(UserFunctionError, match="another type: Acc is declared, and 5 has no 'total'; correct"):
        result_of(processor(puts, stores=stores))


def test_a_store_that_is_missing_in_init_is_named_without_a_record():
    class Bare(Processor[str, int, str, int]):
        def init(self, context):
            context.state_store("held")

        def process(self, record):
            pass

    with pytest.raises(UserFunctionError) as refused:
        result_of(Bare)
    assert str(refused.value).startswith("mine: function 'test_a_store_that_is_missing")
    assert "Bare.init' failed: LookupError: mine has no store 'held'; no store is connected to it; connect it" in str(
        refused.value
    )


def test_what_is_scheduled_is_named_when_it_fails():
    class Reporting(Processor[str, int, str, int]):
        def init(self, context):
            context.schedule(SECOND, Punctuation.STREAM_TIME, self.report)

        def report(self, now):
            raise ValueError("no report")

        def process(self, record):
            pass

    with pytest.raises(
        UserFunctionError, match=r"Reporting\.report' failed: ValueError: no report; correct the function$"
    ):
        result_of(Reporting)


def test_the_ways_out_work():
    """Those that the messages above name."""

    def forwards(self, record):
        self.context.forward(Record(record.key, 1, NINE))
        self.context.timer(record.key, NINE)
        self.context.forward(record, "KSTREAM-SINK-0000000001")

    def on_timer(self, record):
        self.context.forward(record.with_value(2))

    def gives(self, rows):
        self.context.forward_rows(rows.with_columns(value="n"))
        return rows.lazy().with_columns(value=(pl.col("n") / 2).cast(pl.Int64)).collect()

    assert result_of(processor(forwards, on_timer=on_timer)) == [("ann", 1), ("ann", 5), ("ann", 2)]
    assert result_of(processor(gives, BATCH)) == [("ann", 5), ("ann", 2)]
    fixed = processor(lambda self, record: self.context.forward(record.with_value(6)), FIXED)
    assert result_of(fixed) == [("ann", 6)]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda rows: (rows, pl.col("_ts").cast(pl.String)), "times of type String with 0 nulls"),
        (
            lambda rows: (rows, pl.lit(None, pl.Int64)),
            "times of type Int64 with 1 nulls; give each row a time in ms or",
        ),
        (lambda rows: (rows.drop("user"), pl.col("_ts")), "has the columns user, but the rows lack user"),
        (lambda rows: (rows.with_columns(user=pl.lit(None, pl.String)), pl.col("_ts")), "no row for a null key"),
    ],
)
def test_timers_by_columns_have_keys_and_times(action, message):
    cls = processor(lambda self, rows: self.context.timers(*action(rows)), BATCH, on_timers=lambda self, rows: None)
    with pytest.raises(UserFunctionError, match=message):
        result_of(cls)


@pytest.mark.parametrize(
    "use",
    [
        lambda self, record: self.counts.get("ann"),
        lambda self, record: self.context.forward(record),
        lambda self, record: self.context.timer("ann", NINE),
        lambda self, record: self.context.schedule(SECOND, Punctuation.STREAM_TIME, print),
        lambda self, record: self.context.schedule_once(NINE, Punctuation.STREAM_TIME, print),
    ],
)
def test_nothing_works_while_the_processor_is_not_called(use):
    kept = []
    cls = processor(lambda self, record: kept.append((self, record)), on_timer=lambda self, record: None)
    result_of(cls)
    error = in_thread(lambda: use(*kept[0]))
    assert isinstance(error, RuntimeError)
    assert "while Weir does not call the processor" in str(error)
    assert "not in a thread of your own" in str(error)


@dataclass(frozen=True)
class Nested:
    inner: list[int]


@dataclass(frozen=True)
class Named:
    key: str


class NoTypes(Processor):
    def process(self, record):
        pass


class NoProcess(Processor[str, int, str, int]):
    pass


class NoBatch(BatchProcessor[str, int, str, int]):
    pass


class Good(Processor[str, int, str, int]):
    def process(self, record):
        pass


GOOD = Good()


class OtherValue(Processor[str, str, str, int]):
    process = Good.process


class Fixed(FixedKeyProcessor[str, int, int]):
    process = Good.process


class Timed(Good):
    def on_timer(self, record):
        pass


class Fine(BatchProcessor[str, int, str, int]):
    timer_resolution = 0 * SECOND

    def process_batch(self, rows):
        pass


COUNTS = KeyValueStore("counts", key=str, value=int)


@pytest.mark.parametrize(
    ("supplier", "options", "message"),
    [
        (Good(), {}, "pass a class of processors, or a function that makes one"),
        (dict, {}, "which is no processor; subclass weir.Processor"),
        (lambda: GOOD, {}, "gives the same processor twice; make a new one at each call"),
        (NoProcess, {}, r"NoProcess has no process; write def process\(self, record\)"),
        (NoBatch, {}, r"NoBatch has no process_batch; write def process_batch\(self, rows\)"),
        (NoTypes, {}, r"write class NoTypes\(Processor\[str, Order, str, Invoice\]\)"),
        (OtherValue, {}, r"takes a value of n \(String\), but the records have n \(Int64\); declare the same"),
        (Fixed, {}, "Fixed is for process_values; call that"),
        (Timed, {}, r'pass one, for example process\(Timed, name="timed"\)'),
        (Fine, {}, "Fine.timer_resolution is 0:00:00; it must be at least one millisecond"),
        (Good, {"stores": COUNTS}, r"stores= is KeyValueStore\(.*\); list the stores, for example \(KeyValueStore"),
        (Good, {"stores": [5]}, "has 5, which is no store; declare one, for example KeyValueStore"),
        (Good, {"stores": ["counts"]}, "but no store is added; add it first, for example builder.add_state_store"),
        (Good, {"stores": [COUNTS, COUNTS]}, "Good declares the store 'counts' twice; give each its own name"),
        (Good, {"stores": [KeyValueStore("a b", key=str, value=int)]}, "the store name 'a b' is invalid"),
    ],
)
def test_a_processor_that_cannot_run_is_refused_when_it_is_added(supplier, options, message):
    _, numbers = stream()
    with pytest.raises(TopologyError, match=message):
        numbers.process(supplier, **options)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: KeyValueStore("s", key=Nested, value=int), "the key has 'inner', a List"),
        (lambda: KeyValueStore("s", key=list, value=int), "list"),
        (lambda: ListStore("s", key=str, value=object), "object"),
        (lambda: KeyValueStore("s", key=str, value=Named), "'key' is a column of the key and of the value"),
        (
            lambda: WindowStore("s", key=str, value=int, size=2 * SECOND, retention=SECOND),
            "keeps windows of 0:00:02 for 0:00:01; keep them for at least their size",
        ),
        (lambda: SessionStore("s", key=str, value=int, retention=0 * SECOND), "store 's': retention is 0:00:00"),
        (
            lambda: VersionedKeyValueStore("s", key=str, value=int, history_retention=-SECOND),
            "store 's': history_retention is -0:00:01",
        ),
    ],
)
def test_a_store_that_cannot_be_kept_is_refused_when_it_is_declared(declare, message):
    with pytest.raises(TopologyError, match=message):
        declare()


def test_the_store_of_another_processor_needs_another_name():
    builder, numbers = stream()
    numbers.process(Good, stores=[COUNTS], name="one").process(Good, stores=[COUNTS], name="two")
    with pytest.raises(TopologyError, match="counts"):
        builder.build()


def test_wrong_types_are_named_by_every_kind_of_store():
    stores = (
        WindowStore("windows", key=str, value=int, size=SECOND, retention=SECOND),
        SessionStore("sessions", key=str, value=int, retention=SECOND),
        VersionedKeyValueStore("versions", key=str, value=int, history_retention=SECOND),
        ListStore("lists", key=str, value=int),
        COUNTS,
    )
    calls = (
        (lambda context: context.state_store("windows").put("ann", 1, 5), "5 is not a time; pass one, for example"),
        (lambda context: context.state_store("sessions").put("ann", 1), r"pass a Windowed\(key, start, end\)"),
        (lambda context: context.state_store("versions").put("ann", "x", NINE), "got the value 'x'"),
        (lambda context: context.state_store("lists").append("ann", None), "got None to append; a list holds values"),
        (lambda context: context.state_store("lists").append(None, 1), "has no list for a null key"),
    )
    for call, message in calls:
        cls = processor(lambda self, record, call=call: call(self.context), stores=stores)
        with pytest.raises(UserFunctionError, match=message):
            result_of(cls)


def test_fixed_key_records_are_made_by_weir():
    made = []
    cls = processor(lambda self, record: made.append(record), FIXED)
    result_of(cls)
    assert made == [FixedKeyRecord("ann", 5, NINE)]
