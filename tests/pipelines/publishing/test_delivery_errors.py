"""``on_delivery_error``: rows that a target will never take become dead letters by themselves, and the rest goes on."""

import os
import random

import pytest

from tests.databases import Database
from tests.pipelines.publishing.sql_shop import TABLE, SqlShop, drain
from tests.pipelines.spark.inline import Place, Topics
from tests.waiting import wait_for
from weir import Application, StreamsBuilder, TopologyError
from weir.pipelines.publishing.process import PublishingSettings
from weir.pipelines.spark.publishing import Publishers
from weir.state.commit.refused import Refused

MANY, FEW = 0.5, 0.1


@pytest.mark.parametrize("share", [MANY, FEW])
def test_rows_that_a_database_never_takes_go_aside_and_the_others_keep_their_order(tmp_path, database, share):
    database.run(f'CREATE TABLE {TABLE} ("user" text, item text, cents bigint, CHECK (cents >= 0))')
    shop, chance = SqlShop(tmp_path, database.url), random.Random(3)
    for epoch in range(3):
        cents = [-1 if chance.random() < share else number for number in range(12)]
        shop.commit_rows([{"user": "ann", "item": str(epoch), "cents": each} for each in cents])
    aside = shop.refused()
    publisher = shop.publisher(refused=aside, skips=True)
    connect, connects = publisher._connect, []
    publisher._connect = lambda: connects.append(1) or connect()
    drain(publisher)
    assert database.rows(TABLE) == [row for row in shop.sent if row["cents"] >= 0]
    bad = [row for row in shop.sent if row["cents"] < 0]
    assert aside.count() == publisher.state.refused_rows == len(bad)
    assert publisher.state.waiting_rows == 0
    assert len(bad) > 1
    assert len(connects) <= 7 * len(bad), "the batch of 36 is halved about six times for a row, and not from its whole"
    assert all("CHECK" in reason or "check" in reason for reason in aside.all()["reason"])


PROGRAM = """
from weir import Application, Int64, StreamsBuilder, String

builder = StreamsBuilder()
builder.stream("in", key=String("user"), value=Int64("cents")).to_sql("orders", url={url!r})
app = Application("delivering", builder, on_delivery_error="dead_letter")
"""


def test_a_program_that_says_so_needs_no_decision(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'out.sqlite'}"
    (tmp_path / "delivering_program.py").write_text(PROGRAM.format(url=url))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    from delivering_program import app

    database = Database(url)
    database.run('CREATE TABLE orders ("user" text, cents bigint CHECK (cents <> 2))')
    Place(app, Topics({("in", 0): [(b"ann", cents.to_bytes(8, "big"), 1_000) for cents in range(5)]}), tmp_path).run()
    publishers = Publishers()
    publishers.start(
        PublishingSettings(
            driver=os.getpid(),
            reference="delivering_program:app",
            warehouse=str(tmp_path / "warehouse"),
            kafka={},
            sql_url="",
            generation=1,
        )
    )
    try:
        wait_for(lambda: publishers.states and publishers.states[0].published_rows == 4, "the rest is published", 30)
        assert [row["cents"] for row in database.rows("orders")] == [0, 1, 3, 4]
        assert Refused(tmp_path / "warehouse" / "delivering", "orders", "delivering").count() == 1
    finally:
        publishers.close(0.0)


def test_another_decision_is_refused():
    with pytest.raises(TopologyError, match='on_delivery_error is \'continue\'; it must be "wait" or "dead_letter"'):
        Application("shop", StreamsBuilder(), on_delivery_error="continue")
