"""A sink that a changed program has in another form: refused while that would spoil rows that wait, with ways out."""

import re
from threading import Event

import pytest

from tests.databases import Database
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Int64, Sink, StreamsBuilder, String
from weir.pipelines.publishing.connect import connect
from weir.pipelines.publishing.publisher import Publisher
from weir.state.commit.outbox import Outbox
from weir.state.errors import TableSchemaError


class Kept(Sink):
    """Keeps the rows that it gets; ``rows`` is that of all copies."""

    def __init__(self):
        self.rows = []

    def send(self, batch):
        self.rows += batch.rows.select("user", "cents").rows()


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'out.sqlite'}"


@pytest.fixture
def kinds(kept, url):
    """What a sink of the name ``out`` may be, or one of another name."""
    return {
        "kafka": lambda orders, name="out": orders.to("all", name=name),
        "sql": lambda orders, name="out": orders.to_sql("orders", url=url, name=name),
        "own": lambda orders, name="out": orders.to_sink(kept, name=name),
        "other columns": lambda orders, name="out": orders.map_values(amount="cents").to_sql(
            "orders", url=url, name=name
        ),
    }


@pytest.fixture
def place(tmp_path):
    """To which orders of 1, 2... cents come."""
    made = Place(None, Topics({("in", 0): []}), tmp_path)

    def run(add, *cents):
        made.topics.rows["in", 0] += [(b"ann", each.to_bytes(8, "big"), 1_000) for each in cents]
        builder = StreamsBuilder()
        add(builder.stream("in", key=String("user"), value=Int64("cents")))
        made.application = Application("shop", builder)
        made.run()

    made.runs = run
    return made


def published(place):
    """Publish what the program's only sink has waiting."""
    (sink,) = place.application.topology.outside_sinks
    outbox, drained = Outbox(place.warehouse / "shop", sink.name, "shop"), Event()
    drained.set()
    connected = lambda: connect("shop", sink, outbox, {}, "")
    Publisher(outbox, sink.name, connected, application="shop").run(Event(), drained)


CHANGES = [
    ("kafka", "sql", "`topic` is left out"),
    ("kafka", "own", "`topic` is left out"),
    ("sql", "kafka", "`user` is left out"),
    ("sql", "own", "`_bytes` long is new"),
    ("own", "sql", "`_bytes` is left out"),
    ("own", "kafka", "`user` is left out"),
    ("sql", "other columns", "`cents` is left out"),
]


@pytest.mark.parametrize(("before", "now", "reason"), CHANGES)
def test_another_kind_or_fewer_columns_under_one_name_are_refused_and_both_ways_out_work(
    place, kinds, kept, url, before, now, reason
):
    place.runs(kinds[before], 1, 2)
    with pytest.raises(TableSchemaError, match=f"the outbox of the sink 'out' of 'shop' .*{reason}") as refused:
        place.runs(kinds[now], 3)
    assert 'keep the old ones and the kind of the sink, or give the sink another name, for example name="out-2"' in str(
        refused.value
    )

    (other,) = re.findall(r'name="(.*)"', str(refused.value))
    place.runs(lambda orders: kinds[now](orders, other))
    if now == "own":
        published(place)
        assert kept.rows == [("ann", 3)], "it gets what comes from now on"
    elif now == "other columns":
        published(place)
        assert [row["amount"] for row in Database(url).rows("orders")] == [3]

    place.runs(kinds[before], 4)
    if before == "own":
        published(place)
        assert kept.rows == [*[("ann", 3)] * (now == "own"), ("ann", 1), ("ann", 2), ("ann", 4)]
    elif before == "sql":
        published(place)
        cents = [row["cents"] for row in Database(url).rows("orders")]
        assert cents == [*[None] * (now == "other columns"), 1, 2, 4], "what waited is published"


def test_a_column_may_be_added_while_rows_wait(place, kinds, url):
    place.runs(kinds["sql"], 1)
    place.runs(lambda orders: orders.map_values(cents="cents", paid="cents").to_sql("orders", url=url, name="out"), 2)
    published(place)
    assert [(row["cents"], row["paid"]) for row in Database(url).rows("orders")] == [(1, None), (2, 2)]
