"""The model itself, against values worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.pipelines.order.description import (
    FOR_EVER,
    Aggregate,
    Batch,
    Branch,
    Cogroup,
    Data,
    Expect,
    Filter,
    FlatMap,
    FlatMapValues,
    FromHeader,
    GlobalJoin,
    GroupTable,
    Hopping,
    JoinWithin,
    Late,
    Loose,
    MapValues,
    Merge,
    Process,
    Program,
    Record,
    Repartition,
    SelectKey,
    Sessions,
    Shared,
    Sink,
    Sliding,
    Source,
    Step,
    StreamJoin,
    StreamTableJoin,
    Suppress,
    TableJoin,
    ToStream,
    ToTable,
    Totals,
    Tumbling,
    Unlimited,
    Value,
    WithTime,
)
from tests.pipelines.order.model import CircleError, Machine, murmur2, partition_of

ONE = (("t", 1),)
TWO = (("left", 1), ("right", 1))


def counted(*times: int, key: str | None = "k") -> list[Record]:
    return [Record(key, Value(1, "a"), ts) for ts in times]


def outcome(topics, data: Data, *steps: Step):
    return Machine(Program(topics, steps)).run(data)


def test_hashes_are_those_of_kafkas_own_test():
    """org.apache.kafka.common.utils.UtilsTest.testMurmur2."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in known} == {key: value % (1 << 32) for key, value in known.items()}
    assert partition_of("21", 5) == ((-973932308) & 0x7FFFFFFF) % 5


def test_a_record_without_a_key_is_passed_on_and_no_aggregate_takes_it():
    steps = Source("t"), Sink(0), Aggregate(0, "sum and last"), Sink(2)
    found = outcome(ONE, {("t", 0): [*counted(1, key=None), *counted(2)]}, *steps)
    assert found.facts[1] == [(None, Value(1, "a"), 1), ("k", Value(1, "a"), 2)]
    assert found.standing[3] == {"k": (Value(1, "a"), 2)}


def test_distinct_numbers_count_once_also_in_sessions_that_meet():
    records = [Record("k", Value(num, "a"), ts) for num, ts in ((1, 10), (2, 11), (1, 20), (3, 21), (3, 15))]
    steps = Source("t"), Aggregate(0, "distinct and greatest"), Aggregate(0, "distinct and greatest", Sessions(5, 9))
    found = outcome(ONE, {("t", 0): records}, *steps, Sink(1), Sink(2))
    assert found.standing == {3: {"k": (Value(3, "a"), 21)}, 4: {("k", 10, 21): (Value(3, "a"), 21)}}


def test_a_header_goes_with_its_record_to_another_task():
    steps = Source("t", has_headers=True), MapValues(0, "more"), SelectKey(1, "word"), Repartition(2), FromHeader(3)
    assert outcome(ONE, {("t", 0): counted(1)}, *steps, Sink(4)).facts == {5: [("a", Value(2, "h1"), 1)]}


def test_records_are_taken_by_merge_time_then_topic_then_partition_then_offset():
    program = Program((("t", 2), ("u", 1)), (Source("t"), Source("u"), Sink(0), Sink(1)))
    data = {
        ("t", 0): counted(10, 5, 30),
        ("t", 1): counted(10, 20),
        ("u", 0): counted(4, 10),
    }
    assert [(topic, partition, record.ts) for topic, partition, record in Machine(program).order(data)] == [
        *[("u", 0, 4), ("t", 0, 10), ("t", 0, 5), ("t", 1, 10), ("u", 0, 10)],
        *[("t", 1, 20), ("t", 0, 30)],
    ]


def test_a_looked_up_table_comes_first_and_a_table_that_is_also_joined_otherwise_does_not():
    steps = (Source("t"), Source("u", is_table=True), StreamTableJoin(0, 1, is_left=False))
    assert Machine(Program((("t", 1), ("u", 1)), steps)).topic_ranks() == {"u": 0, "t": 1}
    steps = (Source("t"), Source("u"), Merge(0, 1))
    assert Machine(Program((("t", 1), ("u", 1)), steps)).topic_ranks() == {"t": 0, "u": 1}


@pytest.mark.parametrize(
    ("windows", "times", "facts", "late"),
    [
        (Tumbling(10, 5), [1, 12, 9, 15, 9], {("k", 0, 10): (2, 9)}, 1),
        (Tumbling(10, 0), [1, 10, 9], {("k", 0, 10): (1, 1)}, 1),
        (Hopping(10, 5, 0), [12, 21, 14], {("k", 5, 15): (1, 12), ("k", 10, 20): (1, 12)}, 2),
        (Sessions(5, 0), [1, 6, 12, 18], {("k", 1, 6): (2, 6), ("k", 12, 12): (1, 12)}, 0),
        (Sessions(5, 0), [1, 6, 12], {("k", 1, 6): (2, 6)}, 0),
        (Sessions(5, 2), [10, 20, 12, 13, 23], {("k", 10, 10): (1, 10), ("k", 13, 13): (1, 13)}, 1),
    ],
)
@pytest.mark.parametrize("emits", ["suppressed", "on close"])
def test_final_results_come_when_their_window_can_change_no_more(windows, times, facts, late, emits):
    found = outcome(
        ONE, {("t", 0): counted(*times)}, Source("t"), Aggregate(0, "count and greatest", windows, emits), Sink(1)
    )
    assert {key: (value.num, ts) for key, value, ts in found.facts[2]} == facts
    assert found.late_records == late


@pytest.mark.parametrize(
    ("windows", "times", "late"),
    [
        (Tumbling(10, 5), [1, 12, 9, 15, 9], [(0, 10, 9)]),
        (Hopping(10, 5, 0), [12, 21, 14], [(5, 15, 14), (10, 20, 14)]),
        (Sliding(5, 0), [10, 20, 12], [(7, 12, 12)]),
        (Sessions(5, 2), [10, 20, 12, 13, 23], [(12, 12, 12)]),
    ],
)
@pytest.mark.parametrize("emits", ["updates", "suppressed", "on close"])
def test_late_records_come_once_for_each_window_that_they_are_too_late_for(windows, times, late, emits):
    steps = Source("t"), Aggregate(0, "count and greatest", windows, emits), Late(1), Sink(2)
    found = outcome(ONE, {("t", 0): counted(*times)}, *steps)
    assert found.facts[3] == [(("k", start, end), Value(1, "a"), ts) for start, end, ts in late]


def test_an_unlimited_window_never_closes_and_what_is_earlier_belongs_to_none():
    steps = Source("t"), Aggregate(0, "count and greatest", Unlimited(5)), Sink(1)
    found = outcome(ONE, {("t", 0): counted(3, 5, 900_000, 7)}, *steps)
    assert found.standing == {2: {("k", 5, FOR_EVER): (Value(3, "a"), 900_000)}}
    assert found.late_records == 0


def test_a_record_has_the_time_that_its_value_says():
    record = Record("k", Value(13, "ab"), 50)
    found = outcome(ONE, {("t", 0): [record]}, Source("t", is_timed=True), Sink(0))
    assert found.facts[1] == [("k", Value(13, "ab"), 1_000 + 7 * 3 + 2)]


def test_a_processor_takes_the_values_that_a_table_gets():
    rows = [Record("k", Value(1, "a"), 1), Record("k", None, 2), Record("k", Value(4, "b"), 3)]
    rows.append(Record("j", Value(2, "c"), 9))
    found = outcome(ONE, {("t", 0): rows}, Source("t", is_table=True), Process(0, 1), Sink(1))
    assert found.facts[2] == [("k", Value(2, "a"), 2), ("j", Value(3, "c"), 9), ("k", Value(5, "b"), 4)]


def test_a_row_that_a_table_filter_drops_moves_the_time_of_what_is_downstream():
    rows = [Record("j", Value(3, "a"), 90), Record("k", Value(1, "a"), 10), Record("k", Value(4, "b"), 11)]
    filtered = Filter(0, "not thirds", is_kept=False)
    found = outcome(ONE, {("t", 0): rows}, Source("t", is_table=True), filtered, Process(1, 20), Sink(2))
    assert found.facts[3] == [("k", Value(2, "a"), 30), ("k", Value(5, "b"), 31)]


def test_records_without_a_match_are_sent_once_both_sides_are_past_their_window_and_grace():
    data = {
        ("left", 0): [Record("a", Value(1, "l"), 10), Record("b", Value(2, "l"), 11), Record("b", Value(3, "l"), 30)],
        ("right", 0): [Record("b", Value(5, "r"), 12), Record("c", Value(6, "r"), 16), Record("c", Value(7, "r"), 17)],
    }
    steps = (Source("left"), Source("right"), StreamJoin(0, 1, "outer", JoinWithin(2, 3, 3)), Sink(2))
    found = outcome(TWO, data, *steps)
    assert found.facts[3] == [
        ("b", Value(2 * 3 + 5, "lr"), 12),
        ("a", Value(1 * 3 + 900, "l+"), 10),
        ("c", Value(500 * 3 + 6 - 1009, "-r"), 16),
        ("c", Value(500 * 3 + 7 - 1009, "-r"), 17),
    ]


def test_a_row_leaves_its_old_group():
    data = {("t", 0): [Record("k", Value(1, "a"), 1), Record("k", Value(2, "b"), 2), Record("k", None, 3)]}
    found = outcome(ONE, data, Source("t", is_table=True), GroupTable(0, "word", "sum"), Sink(1))
    assert found.standing[2] == {"a": (Value(0, "sum"), 2), "b": (Value(0, "sum"), 3)}


def test_stream_time_is_that_of_the_task_that_owns_the_key():
    assert [partition_of(word, 2) for word in "adf"] == [0, 1, 1]
    steps = (Source("t"), SelectKey(0, "word"), Aggregate(1, "count and greatest", Tumbling(10, 0)), Sink(2))
    data = {("t", 0): [], ("t", 1): [Record("k", Value(1, word), ts) for word, ts in (("d", 15), ("a", 5), ("f", 5))]}
    found = outcome((("t", 2),), data, *steps)
    assert found.standing[3] == {("d", 10, 20): (Value(1, "d"), 15), ("a", 0, 10): (Value(1, "a"), 5)}
    assert found.late_records == 1


def test_rows_of_one_record_arrive_by_the_sub_topology_that_sent_them():
    steps = (
        *(Source("t"), SelectKey(0, "word"), Repartition(1), SelectKey(2, "number"), Repartition(3)),
        *(SelectKey(0, "number"), Repartition(5), Merge(4, 6), Aggregate(7, "chain"), Sink(8)),
    )
    data = {("t", 0): [Record("k", Value(0, "a"), 1), Record("k", Value(4, "b"), 2)]}
    found = outcome(ONE, data, *steps)
    chain = 0
    for num in (0, 0, 4, 4):
        chain = (chain * 31 + num + 1) % 1009
    assert found.standing[9] == {"n0": (Value(chain, "b"), 2)}


def test_of_the_rows_that_one_record_sends_those_for_a_looked_up_table_arrive_first():
    """On whatever edges they come: a stream row finds the table row that its own record makes."""
    steps = (
        *(Source("t"), SelectKey(0, "word"), Repartition(1), SelectKey(0, "word"), ToTable(3)),
        *(StreamTableJoin(2, 4, is_left=True), Sink(5)),
    )
    data = {("t", 0): [Record("k", Value(1, "a"), 1), Record("k", Value(2, "a"), 2)]}
    assert outcome(ONE, data, *steps).facts[6] == [("a", Value(1 * 3 + 1, "aa"), 1), ("a", Value(2 * 3 + 2, "aa"), 2)]


def test_a_circle_of_sub_topologies_is_refused():
    with pytest.raises(CircleError):
        Machine(Program(ONE, (Source("t"), SelectKey(0, "word"), Repartition(1), Merge(0, 2), Sink(3))))


def test_outputs_are_those_that_the_program_names():
    found = outcome(ONE, {("t", 0): counted(1)}, Source("t"), Sink(0), Aggregate(0, "sum and last"), Sink(2))
    assert Counter(found.facts[1]) == {("k", Value(1, "a"), 1): 1}
    assert found.standing[3] == {"k": (Value(1, "a"), 1)}


def test_a_processor_sends_a_chain_on_at_a_multiple_of_three_or_once_its_key_is_quiet():
    """1 and 2 make (1 + 1) * 31 + 2 + 1 = 65; a key that came at 10 is quiet at 20, by a record of another one."""
    data = {("t", 0): [Record("a", Value(1, "x"), 5), Record("a", Value(2, "y"), 10), Record("b", Value(2, "z"), 20)]}
    assert outcome(ONE, data, Source("t"), Process(0, 10), Sink(1)).facts == {
        2: [("b", Value(3, "z"), 20), ("a", Value(65, "y"), 20)]
    }


@pytest.mark.parametrize("by_columns", [False, True])
def test_sums_begin_anew_with_each_report_and_once_their_key_is_quiet(by_columns):
    """Timers of columns are called at multiples of four, so the record at 15 makes that of 14 due only otherwise."""
    given = [("a", 1, 5), ("b", 2, 10), ("a", 3, 12), ("c", 4, 15), ("d", 5, 16)]
    data = {("t", 0): [Record(key, Value(num, "w"), ts) for key, num, ts in given]}
    found = outcome(ONE, data, Source("t"), Totals(0, wait=2, every=10, by_columns=by_columns), Sink(1))
    quiet, last = ("a", Value(3, "quiet"), 14), ("d", Value(5, "w"), 16)
    assert found.facts[2] == [
        *[("a", Value(1, "w"), 5), ("a", Value(1, "all"), 5), ("b", Value(2, "w"), 10), ("b", Value(2, "all"), 10)],
        *[("a", Value(3, "w"), 12), ("c", Value(4, "w"), 15)],
        *([last, quiet] if by_columns else [quiet, last]),
    ]


@pytest.mark.parametrize(("records", "size", "nums"), [(2, None, [65, 129]), (None, 30, [1]), (3, 18, [65, 129])])
def test_batches_leave_when_they_are_full_or_could_not_hold_one_more(records, size, nums):
    """Nine bytes each: 1 and 2 make 65, 1 to 3 make 1, and 3 and 4 make (3 + 1) * 31 + 4 + 1 = 129."""
    data = {("t", 0): [Record("a", Value(num, "w"), 10 - num) for num in (1, 2, 3, 4)]}
    found = outcome(ONE, data, Source("t"), Batch(0, records, size), Sink(1))
    assert found.facts[2] == [("a", Value(num, "w"), ts) for num, ts in zip(nums, (9, 7), strict=False)]


def test_what_was_held_back_by_the_wall_clock_has_a_time_of_its_own():
    data = {("t", 0): [Record("a", Value(num, "w"), num) for num in (7, 3)]}
    found = outcome(ONE, data, Source("t"), Loose(0, "batch"), Aggregate(1, "first and greatest"), Sink(1), Sink(2))
    assert found.facts[3] == [("a", Value(7, "w"), 1_007), ("a", Value(3, "w"), 1_003)]
    assert found.standing[4] == {"a": (Value(7, "w"), 1_007)}


def test_a_global_table_is_complete_before_the_first_record():
    data = {
        ("t", 0): [Record("k1", Value(2, "a"), 1), Record("k3", Value(3, "a"), 2)],
        ("g", 0): [Record("k1", Value(7, "b"), 5), Record("k2", Value(8, "c"), 6), Record("k1", Value(9, "d"), 7)],
        ("g", 1): [Record("k3", Value(1, "e"), 5), Record("k3", None, 6)],
    }
    steps = Source("t"), GlobalJoin(0, "g", "own", is_left=True), GlobalJoin(0, "g", "as in topics", is_left=False)
    found = Machine(Program((("t", 1), ("g", 2)), (*steps, Sink(1), Sink(2)), ("g",))).run(data)
    assert found.facts[3] == [("k1", Value(2 * 3 + 9, "ad"), 1), ("k3", Value(3 * 3 + 900, "a+"), 2)]
    assert found.facts[4] == [("k1", Value(2 * 3 + 8, "ac"), 1)]


def test_a_record_takes_one_branch_and_may_become_several_or_get_another_time():
    data = {("t", 0): [Record("k", Value(num, "a"), num) for num in (2, 3)]}
    steps = (
        *(Source("t"), Branch(0, ("even", "not a"), 0), Branch(0, ("even", "not a"), 2)),
        *(FlatMap(1, "both ways"), FlatMapValues(1, "counted"), WithTime(2, "later"), Sink(3), Sink(4), Sink(5)),
    )
    assert outcome(ONE, data, *steps).facts == {
        6: [("a", Value(2, "a"), 2), ("k", Value(3, "k"), 2)],
        7: [("k", Value(0, "a"), 2), ("k", Value(1, "a"), 2)],
        8: [("k", Value(3, "a"), 12)],
    }


@pytest.mark.parametrize(("restarts", "time"), [(False, 6), (True, 10)])
def test_an_update_may_begin_the_wait_of_a_suppression_anew(restarts, time):
    """``k`` waits for five, from its record at 1 or else from that at 5."""
    steps = Source("t", is_table=True), Suppress(0, 5, restarts=restarts), ToStream(1), Sink(2)
    given = [("k", 1), ("k", 5), ("b", time - 1)]
    data = {("t", 0): [Record(key, Value(ts, "a"), ts) for key, ts in given]}
    assert outcome(ONE, data, *steps).facts[3] == []
    data["t", 0].append(Record("c", Value(0, "a"), time))
    assert outcome(ONE, data, *steps).facts[3] == [("k", Value(5, "a"), 5)]


def test_a_table_that_keeps_its_rows_is_looked_up_in_them():
    data = {("left", 0): [Record("k", Value(1, "a"), 2)], ("right", 0): [Record("k", Value(2, "b"), 1)]}
    steps = (
        *(Source("left"), Source("right", is_table=True), Filter(1, "even", is_kept=True)),
        *(MapValues(2, "more", is_kept=True), StreamTableJoin(0, 3, is_left=True), Sink(4)),
    )
    assert outcome(TWO, data, *steps).facts[5] == [("k", Value(1 * 3 + 3, "ab"), 2)]


def test_a_versioned_table_is_joined_as_of_the_time_of_each_record():
    """Of a history of 20: at 40 what was replaced before 20 is forgotten, and a row of before 20 is dropped."""
    left = [Record("k", Value(0, "a"), ts) for ts in (14, 9, 26)]
    right = [Record("k", Value(1, "b"), 10), Record("k", Value(2, "c"), 25)]
    late = [Record("o", Value(3, "d"), 40), Record("k", Value(4, "e"), 19), Record("k", Value(5, "f"), 20)]
    steps = Source("left"), Source("right", is_table=True, history=20), StreamTableJoin(0, 1, is_left=True)
    program = Program(TWO, (*steps, Sink(2), Sink(1)))
    found = Machine(program).run({("left", 0): left, ("right", 0): right})
    assert [value.word for _, value, _ in found.facts[3]] == ["ab", "a+", "ac"]
    assert found.standing[4] == {"k": (Value(2, "c"), 25)}
    records = [Record("k", Value(0, "a"), ts) for ts in (50, 24, 19)]
    found = Machine(program).run({("left", 0): records, ("right", 0): [*right, *late]})
    assert [value.word for _, value, _ in found.facts[3]] == ["ac", "af", "a+"]


def test_records_wait_for_a_versioned_table_and_go_on_by_time():
    left = [Record(key, Value(0, "a"), ts) for key, ts in (("k", 14), ("j", 14), ("k", 12), ("k", 24), ("k", 13))]
    right = [Record("k", Value(1, "b"), 10), Record("k", Value(2, "c"), 13)]
    steps = Source("left"), Source("right", is_table=True, history=20), StreamTableJoin(0, 1, is_left=True, grace=10)
    found = Machine(Program(TWO, (*steps, Sink(2)))).run({("left", 0): left, ("right", 0): right})
    assert [(key, value.word, ts) for key, value, ts in found.facts[3]] == [
        *[("k", "ab", 12), ("j", "a+", 14), ("k", "ac", 14), ("k", "ac", 13)],
    ]


def test_processors_that_share_a_store_chain_onto_what_both_know():
    data = {("left", 0): [Record("a", Value(1, "x"), 1)], ("right", 0): [Record("a", Value(2, "y"), 2)]}
    found = outcome(TWO, data, Source("left"), Source("right"), Shared(0, 1), Sink(2))
    assert found.facts[3] == [("a", Value(2, "x"), 1), ("a", Value(2 * 31 + 7 * 2 + 3, "x"), 2)]


def test_an_update_that_violates_what_is_expected_leaves_the_row_that_was_there():
    data = {("t", 0): [Record("k", Value(num, "a"), num) for num in (2, 3)]}
    steps = Source("t", is_table=True), Expect(0, "even"), Sink(1)
    assert outcome(ONE, data, *steps).standing[2] == {"k": (Value(2, "a"), 2)}
    data["t", 0].append(Record("k", None, 4))
    assert outcome(ONE, data, *steps).standing[2] == {}


def test_a_suppressed_table_is_looked_up_by_what_it_has_forwarded():
    """``k`` is forwarded by its own record at 20, which is ten beyond the first one that was held."""
    data = {
        ("left", 0): [Record("k", Value(0, "a"), ts) for ts in (15, 25)],
        ("right", 0): [Record("k", Value(num, "bcd"[num]), ts) for num, ts in ((0, 10), (1, 20), (2, 24))],
    }
    steps = Source("left"), Source("right"), ToTable(1), Suppress(2, 10), StreamTableJoin(0, 3, is_left=True), Sink(4)
    assert [value.word for _, value, _ in outcome(TWO, data, *steps).facts[5]] == ["a+", "ac"]


def test_a_value_may_delete_its_row():
    data = {("t", 0): [Record("k", Value(2, "a"), 1), Record("j", Value(2, "a"), 2), Record("k", Value(3, "a"), 3)]}
    assert outcome(ONE, data, Source("t"), ToTable(0, deletes=True), Sink(1)).standing[2] == {"j": (Value(2, "a"), 2)}


def test_means_and_medians_are_those_of_all_that_an_aggregate_has_taken():
    records = [Record("k", Value(num, word), ts) for ts, (num, word) in enumerate([(4, "c"), (9, "b"), (1, "d")])]
    steps = Source("t"), Aggregate(0, "mean and first words"), Aggregate(0, "median and least"), Sink(1), Sink(2)
    found = outcome(ONE, {("t", 0): [*records, Record("k", Value(5, "a"), 3)]}, *steps)
    assert found.standing == {3: {"k": (Value(4, "cbd"), 3)}, 4: {"k": (Value(5, "a"), 3)}}


def test_of_a_group_that_has_lost_all_rows_there_is_no_mean_and_the_first_row_is_reduced_to_itself():
    data = {("t", 0): [Record("k", Value(7, "a"), 1), Record("l", Value(2, "a"), 2), Record("k", None, 3)]}
    steps = Source("t", is_table=True), GroupTable(0, "word", "mean"), GroupTable(0, "word", "reduced")
    found = outcome(ONE, data, *steps, Sink(1), Sink(2))
    chain = (7 * 31 + 2 + 1) % 1009
    assert found.standing[3] == {"a": (Value(2, "mean"), 3)}
    assert found.standing[4] == {"a": (Value((chain * 31 - 7) % 1009, "a"), 3)}
    data["t", 0].append(Record("l", None, 4))
    assert outcome(ONE, data, *steps, Sink(1)).standing[3] == {"a": (Value(-1, "mean"), 4)}


def test_a_cogroup_by_columns_has_one_of_each_stream_and_sessions_that_meet_have_both():
    data = {
        ("left", 0): [Record("k", Value(3, "z"), 10), Record("k", Value(4, "z"), 20), Record("k", Value(2, "z"), 15)],
        ("right", 0): [Record("k", Value(9, "b"), 11)],
    }
    steps = Source("left"), Source("right"), Cogroup(0, 1, Sessions(5, 20), by_columns=True)
    assert outcome(TWO, data, *steps, Sink(2)).standing[3] == {("k", 10, 20): (Value(9, "b"), 20)}
    assert outcome(TWO, data, *steps[:2], Cogroup(0, 1, by_columns=True), Sink(2)).standing[3] == {
        "k": (Value(9, "b"), 20)
    }


def test_a_row_of_a_table_has_the_header_of_its_record_and_a_result_that_of_the_record_that_caused_it():
    steps = Source("t", is_table=True, has_headers=True), ToStream(0), Aggregate(1, "sum and last"), ToStream(2)
    data = {("t", 0): [Record("k", Value(1, "a"), 1), Record("k", None, 2), Record("k", Value(2, "a"), 3)]}
    found = outcome(ONE, data, *steps, FromHeader(1), FromHeader(3), Sink(4), Sink(5))
    assert found.facts[6] == [("k", Value(1, "h1"), 1), ("k", Value(2, "h2"), 3)]
    assert found.facts[7] == [("k", Value(1, "h1"), 1), ("k", Value(3, "h2"), 3)]


def test_what_does_not_meet_a_predicate_passes_its_contrary():
    data = {("t", 0): [Record("k", Value(num, "a"), num) for num in (4, 5)]}
    found = outcome(ONE, data, Source("t"), Filter(0, "below five", is_not=True), Sink(1))
    assert found.facts[2] == [("k", Value(5, "a"), 5)]


def test_a_windowed_row_is_found_by_its_window_until_that_closes():
    """That of the right from 0 to 10 closes at 12, so that the last record of the left, where it is open, misses it."""
    data = {
        ("left", 0): [Record("k", Value(2, "l"), 5), Record("k", Value(4, "l"), 13), Record("k", Value(1, "l"), 6)],
        ("right", 0): [Record("k", Value(3, "r"), 4), Record("j", Value(0, "r"), 12)],
    }
    sources = Source("left"), Source("right")
    tables = Aggregate(0, "sum and last", Tumbling(10, 50)), Aggregate(1, "sum and last", Tumbling(10, 2))
    found = outcome(TWO, data, *sources, *tables, TableJoin(2, 3, "left"), Sink(4))
    met, alone, missed = Value(2 * 3 + 3, "lr"), Value((4 * 3 + 900) % 1009, "l+"), Value(3 * 3 + 900, "l+")
    assert found.standing[5] == {("k", 0, 10): (missed, 6), ("k", 10, 20): (alone, 13)}
    found = outcome(TWO, data, *sources, *tables, ToStream(2), StreamTableJoin(4, 3, is_left=True), Sink(5))
    assert found.facts[6] == [(("k", 0, 10), met, 5), (("k", 10, 20), alone, 13), (("k", 0, 10), missed, 6)]
