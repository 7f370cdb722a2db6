"""Where two topics meet, any cut of the input into batches gives what single records give."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from polars import col

from tests.examples import examples
from tests.pipelines.operators.one_topic import Event
from tests.pipelines.operators.two_topics import CUTS, RECORDS, assert_cuts_do_not_show, left, right
from weir import (
    BufferConfig,
    CogroupedKStream,
    Count,
    EmitStrategy,
    JoinWindows,
    Json,
    KStream,
    KTable,
    Last,
    Mean,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)


def diamond(builder: StreamsBuilder) -> None:
    stream = left(builder)
    later = stream.filter(col("amount") > 3)
    stream.map_values(amount=-col("amount"), word="word").merge(later).to_delta("out")


def repartitioned(builder: StreamsBuilder) -> None:
    left(builder).merge(right(builder)).group_by("word").agg("s", n=Count())


def table(builder: StreamsBuilder) -> KTable:
    return builder.table("right", key=String("id"), value=Json(Event), store="t")


def left_table(builder: StreamsBuilder) -> KTable:
    return builder.table("left", key=String("user"), value=Json(Event), store="l")


def self_join(builder: StreamsBuilder) -> None:
    one = left_table(builder)
    one.outer_join(one.filter(col("amount") > 3)).to_stream().to_delta("out")


def three_tables(builder: StreamsBuilder) -> None:
    one, other = left_table(builder), table(builder).filter(col("amount") > 3)
    one.join(other).left_join(other, words).to_stream().to_delta("out")


def words(one: Event, other: Event | None) -> str:
    return one.word + (other.word if other else "-")


def words_of(one: Event | None, other: Event | None) -> str:
    return (one.word if one else "") + (other.word if other else "")


def self_join_of_a_stream(builder: StreamsBuilder) -> None:
    stream = left(builder)
    stream.outer_join(stream.filter(col("amount") > 3), windows=CLOSE, store="s").to_delta("out")


CLOSE = JoinWindows.of_time_difference_and_grace(timedelta(milliseconds=5), timedelta(milliseconds=2))
UNEVEN = JoinWindows.of_time_difference_with_no_grace(timedelta(milliseconds=3)).after(timedelta(milliseconds=9))


def own_table(builder: StreamsBuilder) -> None:
    stream = left(builder)
    stream.join(stream.filter(col("amount") > 3).to_table("t")).to_delta("out")


def own_table_first(builder: StreamsBuilder) -> None:
    stream = left(builder)
    early = stream.map_values(twice=col("amount") * 2)
    early.join(stream.to_table("t")).to_delta("out")


def both(builder: StreamsBuilder) -> KStream:
    return builder.stream(["left", "right"], key=String("user"), value=Json(Event))


def longer(user: str, event: Event | None, word: str) -> str:
    return word + (event.word if event else "-")


def doubled(user: str, event: Event | None, word: str) -> str | None:
    return None if event and event.amount == 4 else f"{word}{event.word * 2 if event else '='}"


def joined(user: str, one: str, other: str) -> str:
    return one + other


def by_functions(builder: StreamsBuilder) -> CogroupedKStream:
    return left(builder).group_by_key().cogroup(longer).cogroup(right(builder).group_by_key(), doubled)


def by_aggregates(builder: StreamsBuilder) -> CogroupedKStream:
    grouped = left(builder).group_by_key().cogroup(n=Count(), empty=Sum(col("amount").is_null()), mean=Mean("amount"))
    return grouped.cogroup(right(builder).group_by_key(), m=Count(), last=Last("word"))


def own_branches(builder: StreamsBuilder) -> None:
    stream = left(builder)
    few = stream.filter(col("amount") > 3).group_by_key()
    few.cogroup(doubled).cogroup(stream.group_by_key(), longer).aggregate("s", str).to_stream().to_delta("out")


TEN = TimeWindows.of_size_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=4))
SLIDING = SlidingWindows.of_time_difference_and_grace(timedelta(milliseconds=6), timedelta(milliseconds=3))
GAP = SessionWindows.of_inactivity_gap_and_grace(timedelta(milliseconds=4), timedelta(milliseconds=3))
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())
HELD = Suppressed.until_time_limit(timedelta(milliseconds=5), BufferConfig.max_records(1))
ON_CLOSE = EmitStrategy.on_window_close()

PROGRAMS = {
    "cogroup": lambda b: by_functions(b).aggregate("s", str).to_stream().to_delta("out"),
    "cogroup of aggregates": lambda b: by_aggregates(b).agg("s").to_stream().to_delta("out"),
    "cogroup to a table": lambda b: by_aggregates(b).agg("s").to_delta("out"),
    "cogroup of branches of one stream": own_branches,
    "cogroup of one stream": lambda b: left(b).group_by_key().cogroup(longer).aggregate("s", str).to_delta("out"),
    "cogroup, held back": lambda b: by_functions(b).aggregate("s", str).suppress(HELD).to_stream().to_delta("out"),
    "hopping cogroup": lambda b: (
        by_functions(b)
        .windowed_by(TEN.advance_by(timedelta(milliseconds=5)))
        .aggregate("s", str)
        .to_stream()
        .to_delta("out")
    ),
    "final cogroup": lambda b: by_functions(b).windowed_by(TEN).aggregate("s", str).suppress(FINAL).to_delta("out"),
    "final cogroup of aggregates": lambda b: (
        by_aggregates(b).windowed_by(TEN).emit_strategy(ON_CLOSE).agg("s").to_delta("out")
    ),
    "sliding cogroup": lambda b: by_functions(b).windowed_by(SLIDING).aggregate("s", str).to_stream().to_delta("out"),
    "final sliding cogroup": lambda b: (
        by_aggregates(b).windowed_by(SLIDING).emit_strategy(ON_CLOSE).agg("s").to_delta("out")
    ),
    "cogroup in sessions": lambda b: (
        by_functions(b).windowed_by(GAP).aggregate("s", str, joined).to_stream().to_delta("out")
    ),
    "final cogroup in sessions": lambda b: by_aggregates(b).windowed_by(GAP).agg("s").suppress(FINAL).to_delta("out"),
    **{
        f"{join} of tables": lambda b, join=join: (
            getattr(left_table(b), join)(table(b).filter(col("amount") > 3)).to_stream().to_delta("out")
        )
        for join in ("join", "left_join", "outer_join")
    },
    "join of tables to a table": lambda b: left_table(b).outer_join(table(b)).filter(col("amount") > 3).to_delta("out"),
    "join of a table with itself": self_join,
    **{
        f"{join} of streams, {windows}": lambda b, join=join, windows=windows: getattr(left(b), join)(
            right(b), words_of if join == "outer_join" else None, windows=windows, store="s"
        ).to_delta("out")
        for join in ("join", "left_join", "outer_join")
        for windows in (CLOSE, UNEVEN)
    },
    "join of a stream with itself": self_join_of_a_stream,
    "table by another key": lambda b: left_table(b).filter(col("amount") > 2).group_by("word").count("n"),
    "joined tables by another key": lambda b: left_table(b).outer_join(table(b), words_of).group_by("value").count("n"),
    "join of joined tables": three_tables,
    "stream-table join": lambda b: left(b).join(table(b)).to_delta("out"),
    "stream-table left join": lambda b: left(b).left_join(table(b), words).to_delta("out"),
    "join with a filtered table": lambda b: (
        left(b).left_join(table(b).filter(col("amount") > 3).map_values(twice=col("amount") * 2)).to_delta("out")
    ),
    "join with an aggregate": lambda b: (
        left(b).join(right(b).group_by_key().agg("s", n=Count(), mean=Mean("amount"))).to_delta("out")
    ),
    "join with a table of the stream itself": own_table,
    "join with a table that the stream reaches later": own_table_first,
    "merge": lambda b: left(b).filter(col("amount") > 3).merge(right(b)).to_delta("out"),
    "merge, aggregated": lambda b: (
        left(b).merge(right(b)).group_by_key().agg("s", n=Count(), total=Sum("amount")).to_stream().to_delta("out")
    ),
    "two topics as one stream": lambda b: both(b).filter(col("amount") > 3).to_delta("out"),
    "two topics as one stream, aggregated": lambda b: (
        both(b).group_by_key().windowed_by(TEN).agg("s", n=Count(), last=Last("word")).to_stream().to_delta("out")
    ),
    "merge of branches of one stream": diamond,
    "merge, repartitioned": repartitioned,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=examples(12))
@given(records=RECORDS, cuts=CUTS)
def test_any_cut_into_batches_gives_what_single_records_give(name, records, cuts):
    assert_cuts_do_not_show(PROGRAMS[name], records, cuts)
