"""Structured values in changelogs and outputs: a restored store holds the objects that were put, and SQL reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipelines.structured import objects
from weir.pipelines.serdes.row_type import row_type_of
from weir.state.changelog.as_of import state_as_of
from weir.state.changelog.restore import restore_task
from weir.state.changelog.rows import changelog_frame, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import read_table
from weir.state.engine.task_store import TaskStore
from weir.state.stores.typed import TypedStore
from weir.state.types import IsolationLevel, StateId, StoreSpec

KEY = row_type_of(Decimal, "price")


def written(folder, spec, cls, epochs):
    """Epochs of puts of (key, value), where a value of None is a deletion, and their commits; the task's store."""
    driver = Committer(folder / "warehouse", "app", [changelog_spec(spec)], fingerprint="f")
    driver.claim()
    store, expected = TaskStore.create(folder / "one", "0_0", [spec.name]), None
    row_type = row_type_of(cls, "")
    for epoch, puts in enumerate(epochs, start=1):
        with store.session() as session:
            typed = TypedStore(spec, session)
            for key, value in puts:
                rows = pl.DataFrame([*KEY.to_columns([key]), *row_type.to_columns([value])])
                keys = typed.encode(rows)
                if value is None:
                    typed.delete(keys)
                else:
                    typed.write(keys, rows.with_columns(_ts=pl.lit(epoch, pl.Int64)))
            frame = changelog_frame(spec, session).with_columns(_epoch=pl.lit(epoch, pl.Int64))
            partition = {"task": "0_0", "segment": "0"}
            files = [write_file(folder / "warehouse" / "app", changelog_spec(spec), frame, partition)]
            state = StateId(1, epoch)
            store.apply(session, state=state, expected=expected, generation=1, plan_hash="p", make_receipt=encoded)
        driver.commit(
            CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=tuple(files))
        )
        expected = state
        store.settle(generation=1, expected=expected, committed=expected)
    driver.close()
    return store


def encoded(receipt):
    return repr(receipt).encode()


def spec_of(cls):
    return StoreSpec(name="held", key=KEY.columns, value=row_type_of(cls, "").columns)


def content(store, spec, cls):
    """Key to object."""
    with store.reader(IsolationLevel.READ_COMMITTED) as view:
        typed = TypedStore(spec, view)
        keys, rows = typed.scan()
        return dict(zip(KEY.to_objects(typed.decode(keys)), row_type_of(cls, "").to_objects(rows), strict=True))


def restored(folder, spec, epoch):
    state = StateId(1, epoch)
    return restore_task(
        folder / "warehouse" / "app", folder / "two", "0_0", [spec],
        TaskCommit(state=state, instance="two"), state, generation=5, task_rows={}, on_progress=lambda progress: None,
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(objects(), st.lists(st.integers(-2, 2).map(Decimal), min_size=3, max_size=12), st.data())
def test_a_store_restored_from_its_changelog_holds_the_objects_that_were_put(tmp_path_factory, made, keys, data):
    cls, values = made
    epochs = [[(key, data.draw(st.sampled_from(values))) for key in keys] for _ in range(2)]
    expected = {}
    for key, value in (put for puts in epochs for put in puts):
        expected[key] = value
    expected = {key: value for key, value in expected.items() if value is not None}
    folder, spec = tmp_path_factory.mktemp("changelog"), spec_of(cls)
    store = written(folder, spec, cls, epochs)
    again = restored(folder, spec, 2)
    try:
        assert content(store, spec, cls) == expected
        assert content(again, spec, cls) == expected
        assert list(content(again, spec, cls)) == sorted(expected)
        with store.reader(IsolationLevel.READ_COMMITTED) as one, again.reader(IsolationLevel.READ_COMMITTED) as other:
            assert list(one.scan("held", b"", None)) == list(other.scan("held", b"", None))
        rows = state_as_of(folder / "warehouse" / "app", spec, 2)
        assert dict(zip(KEY.to_objects(rows), row_type_of(cls, "").to_objects(rows), strict=True)) == expected
    finally:
        store.close()
        again.close()


@dataclass(frozen=True)
class Line:
    price: Decimal
    at: time
    when: datetime


@dataclass(frozen=True)
class Basket:
    id: UUID
    lines: list[Line]
    labels: dict[str, int]
    day: date
    at: time


BASKET = Basket(
    UUID(int=7),
    [Line(Decimal("1.25"), time(8, 30), datetime(2024, 5, 1, tzinfo=UTC))],
    {"b": 2, "a": 1},
    date(2024, 5, 1),
    time(8, 30, 0, 5),
)


def test_delta_tables_have_structs_lists_and_decimals_and_times_of_day_as_nanoseconds(tmp_path):
    spec = spec_of(Basket)
    written(tmp_path, spec, Basket, [[(Decimal("1.5"), BASKET)]]).close()
    rows = read_table(tmp_path / "warehouse" / "app" / changelog_spec(spec).name)
    (row,) = rows.select("price", *spec.value).to_dicts()
    assert rows.schema["lines"] == pl.List(
        pl.Struct({"price": pl.Decimal(38, 9), "at": pl.Int64(), "when": pl.Datetime("us", "UTC")})
    )
    assert row == {
        "price": Decimal("1.5"),
        "id": "00000000-0000-0000-0000-000000000007",
        "lines": [{"price": Decimal("1.25"), "at": 30_600 * 10**9, "when": datetime(2024, 5, 1, tzinfo=UTC)}],
        "labels": [{"key": "b", "value": 2}, {"key": "a", "value": 1}],
        "day": date(2024, 5, 1),
        "at": 30_600 * 10**9 + 5_000,
    }


@pytest.mark.spark
def test_spark_reads_structs_lists_and_decimals(tmp_path, session):
    spec = spec_of(Basket)
    written(tmp_path, spec, Basket, [[(Decimal("1.5"), BASKET)]]).close()
    table = session.read.format("delta").load(str(tmp_path / "warehouse" / "app" / changelog_spec(spec).name))
    (row,) = table.selectExpr("price", "lines[0].price", "labels[1].key", "map_from_entries(labels)", "day").collect()
    assert tuple(row) == (Decimal("1.5"), Decimal("1.25"), "a", {"b": 2, "a": 1}, date(2024, 5, 1))
