"""Hopping windows by slices give what whole windows give, which are folded record by record and window by window."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from weakref import WeakSet

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col
from polars.testing import assert_frame_equal

from tests.examples import examples
from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from tests.pipelines.operators.one_topic import CUTS, FINAL, RECORDS, batches, build, run
from tests.pipelines.operators.programs import Click, driven, read_windows
from weir import (
    ApproxDistinct,
    BottomK,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    TimeWindows,
    TopK,
    ValueCounts,
)
from weir.pipelines.errors import UserFunctionError
from weir.pipelines.operators import memory_share, open_slices
from weir.pipelines.operators import slices as slices_module
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.final_results import FinalResults
from weir.pipelines.operators.fold import ColumnFold
from weir.pipelines.operators.open_slices import OpenSlices
from weir.pipelines.operators.sliced_results import SlicedResults
from weir.pipelines.operators.slices import Slices, slices_of
from weir.pipelines.tasks.order import Turns
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology.nodes import AggregateNode
from weir.state.stores.specs import TIME
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreKind, StoreSpec


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


COLUMNS = pl.Schema({"user": pl.String(), "amount": pl.Int64(), "word": pl.String(), "share": pl.Decimal(10, 2)})
AGGREGATES = dict(
    n=Count(),
    total=Sum("amount"),
    big=Sum(col("amount") > 20),
    shares=Sum("share"),
    low=Min("amount"),
    high=Max("amount"),
    mean=Mean("amount"),
    longest=Max("word"),
    least=Min("share"),
    most=TopK("amount", 2),
    few=BottomK("word", 1),
    words=ValueCounts("word", 2),
    distinct=ApproxDistinct("word"),
)
OF_EVENTS = {name: each for name, each in AGGREGATES.items() if name not in ("shares", "least")}
FOLD = ColumnFold(tuple(aggregate.bind(name, COLUMNS) for name, aggregate in AGGREGATES.items()))
STORE = StoreSpec(
    name="s",
    key=pl.Schema({"user": pl.String(), "window_start": TIME, "window_end": TIME}),
    value=FOLD.state,
    kind=StoreKind.WINDOW,
)
WINDOWS = st.builds(
    lambda advance, more, grace: TimeWindows.of_size_and_grace(ms(advance + more), ms(grace)).advance_by(ms(advance)),
    st.sampled_from([1, 2, 3, 5, 8]),
    st.integers(1, 25),
    st.sampled_from([0, 0, 1, 3, 8, 60]),
)
FAR = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.one_of(st.integers(0, 60), st.integers(0, 2_000)), st.none()),
    max_size=12,
)


class Side:
    """One operator over the batches of one task."""

    def __init__(self) -> None:
        self.session, self.clocks = MemorySession(), dict[str, int]()
        self.instances = dict[str, object]()
        self.results: list[tuple] = []
        self.late: list[tuple] = []
        self.counts = Counter[str]()

    def take(self, operator: FinalResults | SlicedResults, rows: pl.DataFrame, idle_ms: int) -> int | None:
        """Process ``rows``, then let stream time pass on by ``idle_ms``; returns when the next window closes."""
        epoch = self._epoch()
        found = [operator.process(rows, epoch)]
        if "s" in self.clocks and idle_ms:
            before_ms = self.clocks["s"]
            self.clocks["s"] += idle_ms
            found.append(operator.close(before_ms, epoch))
        for each in found:
            if each is not None and each.height:
                self.results += each.select(sorted(each.columns)).rows()
        for each in epoch.late.values():
            self.late += each.select(sorted(each.columns)).rows()
        self.counts += epoch.counts
        self._compare_open_slices()
        return operator.next_close_ms(epoch) if "s" in self.clocks else None

    def fail(self, operator: FinalResults | SlicedResults, rows: pl.DataFrame) -> None:
        """Process ``rows`` in an epoch that is rolled back, as ``Attempts`` does."""
        before, clocks = {name: dict(each) for name, each in self.session.rows.items()}, dict(self.clocks)
        operator.process(rows, self._epoch())
        self.session.rows, self.clocks = before, clocks
        self.instances.clear()

    def _epoch(self) -> Epoch:
        return Epoch(
            session=self.session,
            clocks=self.clocks,
            now_ms=0,
            clocks_before=dict(self.clocks),
            instances=self.instances,
        )

    def _compare_open_slices(self) -> None:
        """What is kept in memory is what the store has."""
        store = TypedStore(STORE, self.session)
        if (kept := self.instances.get("_open:s")) is not None and (rows := kept._settled(store)) is not None:
            keys, states = store.scan()
            stored = store.decode(keys).hstack(states)
            assert_frame_equal(rows, stored, check_row_order=False)


@pytest.fixture(autouse=True, scope="module")
def _few_rows():
    """Rows that are written are put beside the others soon."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(open_slices, "FEW_ROWS", 2)
        yield


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(
    windows=WINDOWS,
    records=RECORDS,
    others=FAR,
    cuts=CUTS,
    idle=st.lists(st.sampled_from([0, 0, 0, 1, 7, 90]), min_size=6, max_size=6),
    slices_from=st.sampled_from([0, 0, 1, 2]),
    cells=st.sampled_from([1, 20, 1 << 20]),
    most_rows=st.sampled_from([0, 6, 1 << 18, 1 << 18]),
    fails=st.sets(st.integers(0, 5), max_size=2),
)
def test_slices_give_what_whole_windows_give_whatever_the_batches(
    windows, records, others, cuts, idle, slices_from, cells, most_rows, fails
):
    """Results in the same order, from the same records, and the same late ones; over a store that another version of
    Weir has begun with whole windows, too, however few states are merged at a time and however few slices are kept in
    memory, and after epochs that were rolled back."""
    records = [*records, *others]
    parts = [part.with_columns(share=(pl.col("amount") * 7).cast(pl.Decimal(10, 2))) for part in batches(records, cuts)]
    whole = FinalResults(store=STORE, fold=FOLD, windows=windows, late_to="late")
    sliced = SlicedResults(store=STORE, slices=Slices(windows=windows, fold=FOLD, key=("user",)), late_to="late")
    one, other = Side(), Side()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slices_module, "CELLS", cells)
        patched.setattr(memory_share, "MOST_ROWS", most_rows)
        for number, part in enumerate(parts):
            due = one.take(whole, part, idle[number])
            if number in fails and number >= slices_from:
                other.fail(sliced, parts[-1])
            assert other.take(sliced if number >= slices_from else whole, part, idle[number]) == due
            assert (other.results, other.late, other.counts) == (one.results, one.late, one.counts)
            assert {name: at for name, at in other.clocks.items() if name != "_slices:s"} == one.clocks


@pytest.mark.parametrize(("size", "advance"), [(60, 1), (10, 4), (8, 4), (7, 5), (5, 4)])
def test_every_time_is_in_the_slice_whose_windows_it_is_in(size, advance):
    windows = TimeWindows.of_size_with_no_grace(ms(size)).advance_by(ms(advance))
    slices = Slices(windows=windows, fold=FOLD, key=("user",))
    times = pl.int_range(0, 5 * size, eager=True).to_numpy()
    numbers = slices.numbers(times)
    starts, ends = slices.bounds(numbers)
    firsts, lasts = slices.first_windows(numbers), slices.last_windows(numbers)
    for time, number, start, end, first, last in zip(times, numbers, starts, ends, firsts, lasts, strict=True):
        assert start <= time < end
        assert slices.numbers(start) == number
        of_windows = [k for k in range(5 * size) if k * advance <= time < k * advance + size]
        assert of_windows == list(range(first, last + 1))
        for bound in (start, end - 1):
            assert [k for k in range(5 * size) if k * advance <= bound < k * advance + size] == of_windows
    assert slices.per_window == len(
        {int(number) for time, number in zip(times, numbers, strict=True) if 2 * advance <= time < 2 * advance + size}
    )


@settings(max_examples=examples(60))
@given(records=RECORDS, cuts=CUTS, turn=st.integers(0, 3), grace=st.sampled_from([0, 8, 60]))
def test_a_program_that_keeps_whole_windows_goes_on_with_slices(records, cuts, turn, grace):
    """Its first epoch makes windows of them, whether or not it has records. Without the sketch, whose bytes, unlike its
    estimates, depend on the order in which values come."""
    aggregates = {name: each for name, each in OF_EVENTS.items() if name != "distinct"}
    windows = TimeWindows.of_size_and_grace(ms(10), ms(grace)).advance_by(ms(4))

    def program(retention: timedelta | None):
        return lambda s: (
            s.group_by_key()
            .windowed_by(windows, retention=retention)
            .agg("s", **aggregates)
            .suppress(FINAL)
            .to_delta("out")
        )

    sliced, whole = (TaskProcessor(build(program(retention))) for retention in (None, ms(10 + grace)))
    parts = batches(records, cuts)
    found = []
    for turn_of_change in (turn, 0):
        session, clocks, results = MemorySession(), dict[str, int](), []
        for number, part in enumerate(parts):
            rows = in_turn({"events": part})
            output = (sliced if number < turn_of_change else whole).run(rows, session, clocks, 0)
            clocks = output.clocks
            if "out" in output.sinks:
                results += output.sinks["out"].drop("_seq").rows()
        output = whole.run(Turns(), session, clocks, 0)
        found.append((results, output.clocks, {store: rows for store, rows in session.rows.items() if rows}))
    assert found[0] == found[1]


def hopping(stream):
    return stream.group_by_key().windowed_by(TimeWindows.of_size_and_grace(ms(60), ms(5)).advance_by(ms(1)))


def test_a_record_in_sixty_windows_is_one_row():
    sub_topology = build(lambda s: hopping(s).agg("s", **OF_EVENTS).suppress(FINAL).to_delta("out"))
    found = run(sub_topology, batches([("a", 100, (1, "x")), ("a", 100, (2, "y")), ("b", 100, (3, "x"))], set()))
    assert len(found["stores"]["s"]) == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda s: hopping(s).agg("s", n=Count(), last=Last("word")).suppress(FINAL).to_delta("out"),
        lambda s: hopping(s).agg("s", n=Count(), first=First("word")).suppress(FINAL).to_delta("out"),
        lambda s: hopping(s).agg("s", n=Count()).to_delta("out"),
        lambda s: hopping(s).agg("s", n=Count()).filter(col("n") > 1).suppress(FINAL).to_delta("out"),
        lambda s: (
            s.group_by_key()
            .windowed_by(TimeWindows.of_size_and_grace(ms(60), ms(5)).advance_by(ms(1)), retention=ms(90))
            .agg("s", n=Count())
            .suppress(FINAL)
            .to_delta("out")
        ),
    ],
    ids=["last", "first", "updates", "filtered", "kept longer"],
)
def test_windows_that_need_an_order_or_are_seen_while_they_are_open_are_kept_whole(program):
    found = run(build(program), batches([("a", 100, (1, "x"))], set()))
    assert len(found["stores"]["s"]) == 60


def test_windows_of_very_many_slices_are_kept_whole():
    windows = TimeWindows.of_size_with_no_grace(timedelta(days=1)).advance_by(ms(1))
    assert slices_of(windows, FOLD, STORE) is None
    assert slices_of(TimeWindows.of_size_with_no_grace(ms(1)), FOLD, STORE) is None


@settings(max_examples=examples(20))
@given(
    times=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 120)), min_size=1, max_size=12),
    windows=WINDOWS,
)
def test_open_windows_can_be_read_as_if_they_were_kept_whole(times, windows):
    """Beside the same windows with an aggregate that needs an order, which are."""

    def program(clicks):
        grouped = clicks.group_by_key().windowed_by(windows)
        grouped.agg("sliced", n=Count(), most=Max("ms")).suppress(FINAL).to_delta("out")
        grouped.agg("whole", n=Count(), most=Max("ms"), first=First("ms")).suppress(FINAL).to_delta("others")

    with driven(program) as (topic, _, driver):
        for number, (user, time) in enumerate(times):
            topic.pipe_input(user, Click("x", number), timestamp_ms=time)
            for name in "ab":
                found = driver.get_window_store("sliced").fetch_all(name)
                whole = driver.get_window_store("whole").fetch_all(name)
                assert found == [
                    (window, {key: of for key, of in value.items() if key != "first"}) for window, value in whole
                ]


def test_the_store_of_a_node_has_slices_where_its_operator_does():
    sub_topology = build(
        lambda s: hopping(s).agg("s", n=Count()).suppress(FINAL).to_delta("out"),
    )
    (node,) = (node for node in sub_topology.nodes if isinstance(node, AggregateNode))
    assert sub_topology.hops == {"s": node.slices}
    assert sub_topology.identities["s"].grouping.endswith(", in slices")


def test_many_epochs_of_few_records_leave_few_frames_in_memory(monkeypatch):
    monkeypatch.setattr(open_slices, "FEW_ROWS", 1 << 12)
    monkeypatch.setattr(open_slices, "MOST_PARTS", 4)
    windows = TimeWindows.of_size_with_no_grace(ms(60_000)).advance_by(ms(1_000))
    operator = SlicedResults(store=STORE, slices=Slices(windows=windows, fold=FOLD, key=("user",)))
    side = Side()
    OpenSlices.of(TypedStore(STORE, side.session), side._epoch())
    for number in range(20):  # every third record is in the slice of the one before
        record = ("a", 1_000 * (number - (number % 3 == 2)), (number, "x"))
        (rows,) = batches([record], set())
        operator.process(rows.with_columns(share=pl.lit(0).cast(pl.Decimal(10, 2))), side._epoch())
        assert len(side.instances["_open:s"]._newer) < 4
    side._compare_open_slices()


def test_slices_are_read_once_windows_close():
    """Else each attempt at an epoch with a bad record, none of which closes a window, would read all of them."""
    windows = TimeWindows.of_size_with_no_grace(ms(60)).advance_by(ms(20))
    operator, side = SlicedResults(store=STORE, slices=Slices(windows=windows, fold=FOLD, key=("user",))), Side()
    for time, is_read in ((10, False), (50, False), (70, True), (75, True)):
        (rows,) = batches([("a", time, (1, "x"))], set())
        operator.process(rows.with_columns(share=pl.lit(0).cast(pl.Decimal(10, 2))), side._epoch())
        assert ("_open:s" in side.instances) == is_read


def test_the_tasks_of_a_process_share_what_it_keeps_in_memory(monkeypatch):
    """Of eight rows, each of two stores keeps up to four; a third one with three keeps none until one of the others has
    more and gives up its share."""
    monkeypatch.setattr(memory_share, "MOST_ROWS", 8)
    monkeypatch.setattr(memory_share, "_keeping", WeakSet())
    windows = TimeWindows.of_size_with_no_grace(ms(400)).advance_by(ms(10))
    operator = SlicedResults(store=STORE, slices=Slices(windows=windows, fold=FOLD, key=("user",)))

    def keeps(side: Side, time: int) -> bool:
        (rows,) = batches([("a", time, (1, "x"))], set())
        operator.process(rows.with_columns(share=pl.lit(0).cast(pl.Decimal(10, 2))), side._epoch())
        side._compare_open_slices()
        return side.instances["_open:s"].rows is not None

    def begun() -> Side:
        side = Side()
        for time in (0, 10, 20):
            (rows,) = batches([("a", time, (1, "x"))], set())
            operator.process(rows.with_columns(share=pl.lit(0).cast(pl.Decimal(10, 2))), side._epoch())
        OpenSlices.of(TypedStore(STORE, side.session), side._epoch())
        return side

    one, other = begun(), begun()
    assert keeps(one, 30)
    assert keeps(other, 30)
    third = begun()
    assert third.instances["_open:s"].rows is None  # three rows would be more than a third of eight
    assert keeps(one, 30)
    assert not keeps(one, 40)
    fourth = begun()
    assert keeps(fourth, 30)


def test_after_an_error_nothing_is_left_of_what_was_not_stored():
    """The function that fails comes behind the windows, which have taken the record by then."""
    fails = [False]

    def look(key, value):
        if fails[0]:
            raise ValueError("no")

    def program(stream):
        windows = TimeWindows.of_size_with_no_grace(ms(20)).advance_by(ms(5))
        totals = stream.group_by_key().windowed_by(windows).agg("s", total=Sum("ms")).suppress(FINAL)
        totals.to_stream().peek(look).to_delta("out")

    found = []
    for times in ([20, 26, 31, 47, 90], [20, 26, 31, None, 47, 90]):
        fails[0] = False
        with driven(program) as (topic, out, _):
            for time in times:
                if time is None:
                    fails[0] = True
                    with pytest.raises(UserFunctionError):
                        topic.pipe_input("a", Click("x", 1_000), timestamp_ms=44)
                    fails[0] = False
                else:
                    topic.pipe_input("a", Click("x", time), timestamp_ms=time)
            found.append(read_windows(out, "total"))
    assert found[0] == found[1] != []
