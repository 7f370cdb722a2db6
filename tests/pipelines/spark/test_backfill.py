"""What a backfill's workers are given, and what it refuses before Spark is started."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace

import polars as pl
import pytest

from tests.integration.registry_orders import TOPIC, app
from tests.pipelines.serdes.registry_server import schema_registry
from weir.infra.settings import Settings
from weir.pipelines.backfill.errors import TopicReplacedError
from weir.pipelines.backfill.files import SourceFiles
from weir.pipelines.backfill.shadow import Backfill, Days, Shadow
from weir.pipelines.serdes.registry import SchemaRegistryError
from weir.pipelines.spark import backfill
from weir.pipelines.spark.errors import Loss, LostPosition, OffsetsLostError

REFERENCE = "tests.integration.registry_orders:app"
DAYS = Days.of_ms(0, 24 * 3600 * 1000)


def begun(settings: Settings) -> Shadow:
    shadow = Shadow.of(settings.warehouse, settings.state_dir, app.id, "a-day")
    shadow.begin(
        Backfill(id=shadow.id, application=app.id, days=DAYS, source="Kafka", ranges={TOPIC: {0: (0, 9)}}, cut_epoch=1)
    )
    return shadow


def run(settings: Settings) -> None:
    backfill.run_shadow(
        REFERENCE,
        settings,
        begun(settings),
        bootstrap_servers="nowhere:1",
        owner="a test",
        stop=Event(),
        spark=object(),
    )


def test_a_program_that_needs_a_schema_registry_is_refused_without_one(tmp_path):
    with pytest.raises(SchemaRegistryError, match=r"no schema registry is configured; .*--set schema_registry\.url="):
        run(Settings(dir=tmp_path))


def test_the_workers_are_told_of_the_schema_registry(tmp_path, monkeypatch):
    class GivenError(Exception):
        """Raised instead of starting a driver."""

    def given(context, worker, *_):
        raise GivenError(worker.schema_registry)

    monkeypatch.setattr(backfill, "spark_driver", given)
    with schema_registry() as server, pytest.raises(GivenError) as found:
        run(Settings(dir=tmp_path, schema_registry={"url": server.url}))
    assert found.value.args == ({"url": server.url},)


def test_a_topic_made_anew_while_a_backfill_reads_it_is_named_with_what_a_backfill_can_do(tmp_path, monkeypatch):
    lost = LostPosition(topic=TOPIC, partition=0, position=3, loss=Loss.REPLACED, found="ids", resume=0)

    def run_(*_, **__):
        raise OffsetsLostError("a-day", [lost])

    monkeypatch.setattr(backfill, "spark_driver", lambda *_: nullcontext(SimpleNamespace(run=run_)))
    with schema_registry() as server, pytest.raises(TopicReplacedError, match=r"recreated.*--from TOPIC=PATH"):
        run(Settings(dir=tmp_path, schema_registry={"url": server.url}))


def test_records_of_files_are_written_with_schemas_of_the_registry(tmp_path):
    files = tmp_path / "orders.parquet"
    pl.DataFrame({"user": ["ann"], "amount": [3], "_ts": [7]}).write_parquet(files)
    source = SourceFiles(paths={TOPIC: str(files)}, time_column="_ts", from_ms=0, end_ms=DAYS.end_ms)
    with schema_registry() as server:
        written = list(backfill._run_slices(REFERENCE, tmp_path, source, {"url": server.url}, [(TOPIC, 0, 1)]))
        assert len(server.schemas) == 1
    assert written == [(TOPIC, 0, 1)]
