"""Five countries are five rows for any reader of Delta, after real runs over a real topic (docs/sql.md)."""

from __future__ import annotations

import contextlib
import io
import json

import polars as pl
import pytest
from confluent_kafka import Producer

from tests.pipelines.spark import countries_page as page
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.pipelines.spark.runner import run

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def produce(properties: dict[str, str], first: int, last: int) -> None:
    producer = Producer(properties)
    for number, (country, cents) in list(enumerate(page.ORDERS))[first:last]:
        value = json.dumps({"cents": cents}).encode()
        producer.produce("orders", value, country.encode(), timestamp=page.FIRST_MS + 1_000 * number)
    producer.flush()


def expected(orders: list[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    """Orders and cents by country, added up one after another."""
    sums: dict[str, tuple[int, int]] = {}
    for country, cents in orders:
        count, total = sums.get(country, (0, 0))
        sums[country] = (count + 1, total + cents)
    return sums


def test_any_reader_of_delta_sees_one_row_per_country(settings, spark, shared_spark):
    reference = "tests.pipelines.spark.countries_page:app"
    folder = settings.warehouse / "shop" / "countries"
    with broker_for(settings) as (servers, settings):
        KafkaAdmin(servers, settings.kafka).create_topic("orders", 1)
        for last in (4, len(page.ORDERS)):
            produce({**settings.kafka, "bootstrap.servers": servers}, 0 if last == 4 else 4, last)
            run(reference, settings, bootstrap_servers=servers, until_caught_up=True, spark=spark)
            rows = pl.read_delta(str(folder)).select("country", "orders", "cents").rows()
            assert len(rows) == len({country for country, *_ in rows})
            assert {country: (orders, cents) for country, orders, cents in rows} == expected(page.ORDERS[:last])
    assert page.lines(page.printed(page.PANDAS, settings.warehouse)) == page.lines(page.PANDAS_ANSWER)
    assert page.lines(page.printed(page.POLARS, settings.warehouse)) == page.lines(page.POLARS_ANSWER)
    assert page.lines(page.printed(page.DUCKDB, settings.warehouse)) == page.lines(page.DUCKDB_ANSWER)
    session, out = shared_spark.session(), io.StringIO()
    with contextlib.redirect_stdout(out):
        session.sql(page.at(page.SQL, settings.warehouse)).show()
    assert page.lines(out.getvalue()) == page.lines(page.SQL_ANSWER)
    columns = session.sql(f"SELECT * FROM delta.`{folder}`").columns
    assert columns == ["country", "orders", "cents", "_ts"]
