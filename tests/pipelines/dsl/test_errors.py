"""What cannot run is refused while the topology is built, in one sentence with the way out."""

import re
from dataclasses import dataclass
from datetime import timedelta

import polars as pl
import pytest
from polars import col

from pipelines import (
    BufferConfig,
    Count,
    Delimited,
    Json,
    Mean,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
    TopologyError,
)


@dataclass(frozen=True)
class Click:
    page: str
    ms: int | None


@dataclass(frozen=True)
class Hidden:
    _page: str


@dataclass(frozen=True)
class Tags:
    tags: list[str]


@dataclass(frozen=True)
class Start:
    window_start: int


def untyped(value):
    return value


def odd(value) -> complex:
    return 1j


WINDOWS = TimeWindows.of_size_with_no_grace(timedelta(hours=1))
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())


def clicks(builder=None, value=Click, key="user"):
    return (builder or StreamsBuilder()).stream("clicks", key=String(key), value=Json(value))


@pytest.mark.parametrize(("describe", "message"), [
    (lambda: clicks(value=Hidden), r"'_page' begins with an underscore"),
    (lambda: clicks(key="page"), r"'page' is both a key column and a value column; rename"),
    (lambda: clicks().group_by_key().agg("", n=Count()), "the store has no name"),
    (lambda: clicks().group_by_key().count(None), "the store has no name"),
    (lambda: clicks().to_table("a/b"), "the store name 'a/b' does not do"),
    (lambda: clicks().to_delta("_commits"), "the table name '_commits' does not do"),
    (lambda: clicks().group_by_key().agg("s"), "computes nothing"),
    (lambda: clicks().group_by_key().agg("s", n=Count), "pass Count()"),
    (lambda: clicks().group_by_key().agg("s", n=Sum("nope")), "'nope'; the columns here are user, page, ms"),
    (lambda: clicks().group_by_key().agg("s", n=Mean("page")), "it needs numbers or booleans"),
    (lambda: clicks().group_by_key().agg("s", n=Sum(pl.lit(1))), "uses no column"),
    (lambda: clicks().group_by_key().agg("s", user=Count()), "'user' is both"),
    (lambda: clicks().group_by_key().agg("s", _n=Count()), "underscore"),
    (lambda: clicks().group_by_key().agg("s", n=Mean("ms"), n__sum=Count()), "'n__sum' is one that Weir makes"),
    (lambda: clicks(key="n__count").group_by_key().agg("s", n=Mean("ms")), "'n__count' is one that Weir makes"),
    (lambda: clicks().group_by_key().agg("s", n__stored=Count()), "'n__stored' is one that Weir makes"),
    (lambda: StreamsBuilder().table("t", key=Json(Tags), value=String(), store="s"), "'tags', which is a list"),
    (lambda: clicks().filter(col("ms") + 1), "filter needs true or false"),
    (lambda: clicks().filter(col("ms").shift(1) > 1), "beyond its own record"),
    (lambda: clicks().filter(col("ms") > col("ms").mean()), "beyond its own record"),
    (lambda: clicks().map_values(x=col("ms").filter(col("ms") > 1) + 1), "beyond its own record"),
    (lambda: clicks().map_values(x=col("ms").map_elements(untyped, return_dtype=pl.Int64)), "map_elements"),
    (lambda: clicks().map_values(x=col("page").dt.hour()), "does not fit the columns"),
    (lambda: clicks().map_values(untyped), "untyped has no return annotation"),
    (lambda: clicks().map_values(odd), "no column type"),
    (lambda: clicks().map_values(), "either one function or columns"),
    (lambda: clicks().map_values(user=col("ms")), "'user' is both"),
    (lambda: clicks().select_key(untyped), "no return annotation"),
    (lambda: clicks().select_key(), "no columns"),
    (lambda: clicks().select_key(page="user"), "'page' is both"),
    (lambda: clicks().group_by_key().aggregate("s", dict, untyped), "no return annotation"),
    (lambda: clicks().group_by_key().windowed_by(timedelta(hours=1)), "pass TimeWindows"),
    (lambda: clicks(value=Start).group_by_key().windowed_by(WINDOWS).reduce("s", max), "is the window's own"),
    (lambda: clicks().group_by_key().windowed_by(WINDOWS).count("s").to_stream().group_by_key().windowed_by(WINDOWS),
     "windowed already"),
    (lambda: clicks().group_by_key().count("s").suppress(FINAL), "needs a windowed table"),
    (lambda: clicks().group_by_key().windowed_by(WINDOWS).count("s").suppress(WINDOWS), "pass Suppressed"),
    (lambda: Delimited(Hidden, sep=""), "empty separator"),
    (lambda: clicks().merge(StreamsBuilder().stream("views", key=String("user"), value=String("page"))),
     "user: String, page: String, ms: Int64 and user: String, page: String; give both the same names"),
    (lambda: clicks().join(clicks().group_by_key().windowed_by(WINDOWS).count("s")), "are not kept, so a join cannot"),
    (lambda: clicks().join(clicks().to_table("s", ttl=timedelta(hours=1))), "cannot look them up"),
    (lambda: clicks().join(clicks().to_table("s"), windows=timedelta(1)), "cannot join .* this way"),
    (lambda: clicks().join(clicks().to_table("s"), grace=timedelta(1)), "cannot join a KTable this way"),
    (lambda: clicks().to_table("s").join(clicks()), "a table cannot join a KStream; pass a table"),
    (lambda: StreamsBuilder().build(), "reads nothing"),
    (lambda: StreamsBuilder().stream(re.compile("c.*"), key=String(), value=String()), "not found by a pattern"),
    (lambda: StreamsBuilder().stream("c-*", key=String(), value=String()), "'c-[*]' is none that Kafka takes"),
    (lambda: StreamsBuilder().stream(["c", None], key=String(), value=String()), "the topic is None; name it"),
    (lambda: StreamsBuilder().table(["c", "d"], key=String(), value=String(), store="s"), "stream alone reads several"),
    (lambda: StreamsBuilder().stream("c", key=str, value=String()), "key is <class 'str'>; pass a serde"),
    (lambda: StreamsBuilder().stream("c", key=String(), value=String), "value is <class .*String'>; pass a serde"),
    (lambda: TimeWindows.of_size_and_grace(3600, 60), "window size is 3600; pass a datetime.timedelta"),
])
def test_a_mistake_is_named(describe, message):
    with pytest.raises(TopologyError, match=message) as error:
        describe()
    assert "\n" not in str(error.value).split(": ", 2)[0]


@pytest.mark.parametrize(("describe", "message"), [
    (lambda b: [clicks(b), clicks(b)], "topic 'clicks' is declared 2 times; read it once"),
    (lambda b: [clicks(b).group_by_key().count("s").to_stream().group_by_key().agg("s", n=Count())], "store 's'"),
    (lambda b: [stream.to_delta("t") or stream.to_delta("t") for stream in [clicks(b)]], "table 't'"),
])
def test_two_nodes_with_one_name_are_refused_when_the_topology_is_built(describe, message):
    builder = StreamsBuilder()
    describe(builder)
    with pytest.raises(TopologyError, match=message):
        builder.build()
