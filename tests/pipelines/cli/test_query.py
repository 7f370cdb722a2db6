"""Lookups in local state: what a key is on the command line, windows, finished values, isolation."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from infra.settings import Settings
from pipelines.cli.options import CommandError
from pipelines.cli.query import parse_key, read_key
from pipelines.examples.flights import app
from state.engine.instances import set_current, task_folder
from state.engine.task_store import TaskStore
from state.stores.typed import TypedStore
from state.types import IsolationLevel, StateId, TaskId

ROUTE = pl.Schema({"carrier": pl.String(), "origin": pl.String()})
TEN = datetime(2013, 1, 1, 10, tzinfo=UTC)
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@pytest.mark.parametrize(("text", "key"), [
    ("UA-EWR", {"carrier": "UA", "origin": "EWR"}),
    ("UA-EWR-2", {"carrier": "UA", "origin": "EWR-2"}),
    ('{"origin": "E-R", "carrier": "U-A"}', {"carrier": "U-A", "origin": "E-R"}),
])
def test_several_key_columns_take_a_dash_or_json(text, key):
    assert parse_key(text, ROUTE) == key


def test_one_key_column_takes_the_text_as_it_is():
    assert parse_key("a-b", pl.Schema({"user": pl.String()})) == {"user": "a-b"}
    assert parse_key("-7", pl.Schema({"id": pl.Int64()})) == {"id": -7}


@pytest.mark.parametrize(("text", "schema", "words"), [
    ("UA", ROUTE, "carrier, origin"),
    ('{"carrier": "UA"}', ROUTE, "carrier, origin"),
    ("{carrier", ROUTE, "not JSON"),
    ("seven", pl.Schema({"id": pl.Int64()}), "'seven'"),
])
def test_a_key_that_does_not_fit_says_what_would(text, schema, words):
    with pytest.raises(CommandError, match=words):
        parse_key(text, schema)


@pytest.fixture
def settings(tmp_path):
    """Task 0_1 holds two windows of UA-EWR and one of AA-JFK; the second of UA-EWR is not committed."""
    settings = Settings(dir=tmp_path)
    spec = next(spec for spec in app.topology.sub_topologies[0].stores if spec.name == "hourly")
    task = task_folder(settings.state_dir, app.id, app.topology.task_name(TaskId(0, 1)))
    store = TaskStore.create(task / "first", "0_1", [spec.name])
    set_current(task, "first")

    def apply(number: int, expected: StateId | None, rows: list[tuple[str, str, datetime, int]]) -> None:
        keys = pl.DataFrame([{"carrier": carrier, "origin": origin, "window_start": start,
                              "window_end": start + timedelta(hours=1)} for carrier, origin, start, _ in rows],
                            schema=spec.key)
        values = pl.DataFrame([{**{name: delay for name in spec.value}, "_ts": 0} for *_, delay in rows],
                              schema={**spec.value, "_ts": pl.Int64()})
        with store.session() as session:
            typed = TypedStore(spec, session)
            typed.write(typed.encode(keys), values)
            receipt = store.apply(session, state=StateId(1, number), expected=expected, generation=1,
                                  plan_hash=str(number), make_receipt=lambda _: b"receipt")
        assert receipt is not None

    store.settle(generation=1, expected=None, committed=None)
    apply(1, None, [("UA", "EWR", TEN, 3), ("AA", "JFK", TEN, 5)])
    store.settle(generation=1, expected=StateId(1, 1), committed=StateId(1, 1))
    apply(2, StateId(1, 1), [("UA", "EWR", TEN + timedelta(hours=1), 4)])
    store.close()
    return settings


def test_a_window_store_answers_with_all_windows_of_the_key_and_finished_values(settings):
    rows = read_key(settings, app, "hourly", "UA-EWR", UNCOMMITTED)
    assert rows["window_start"].to_list() == [TEN, TEN + timedelta(hours=1)]
    assert rows["flights"].to_list() == [3, 4]
    assert rows["mean_delay"].to_list() == [1.0, 1.0]  # kept as sum and count, which the fixture set alike


def test_read_committed_leaves_out_what_no_commit_covers(settings):
    assert read_key(settings, app, "hourly", "UA-EWR", COMMITTED)["flights"].to_list() == [3]
    assert read_key(settings, app, "hourly", "AA-JFK", COMMITTED)["flights"].to_list() == [5]


def test_an_absent_key_is_no_error_and_an_unknown_store_is(settings):
    assert read_key(settings, app, "hourly", "ZZ-JFK", COMMITTED).is_empty()
    with pytest.raises(CommandError, match="hourly, by_carrier"):
        read_key(settings, app, "daily", "UA-EWR", COMMITTED)


def test_a_folder_without_state_says_so(tmp_path):
    with pytest.raises(CommandError, match="run it first"):
        read_key(Settings(dir=tmp_path), app, "hourly", "UA-EWR", COMMITTED)
