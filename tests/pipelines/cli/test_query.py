"""``weir query``: keys on the command line, windows, finished values, isolation levels."""

import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from typer.testing import CliRunner

from tests.pipelines import shop
from weir import Application, Int64, ListStore, Processor, StreamsBuilder, String
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app as weir
from weir.pipelines.cli.query import Question, _moment, _position
from weir.pipelines.errors import QueryError
from weir.pipelines.examples.flights import app
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import register
from weir.pipelines.state_reader import Query, StateReader
from weir.state.engine.instances import set_current, task_folder
from weir.state.engine.task_store import TaskStore
from weir.state.stores.typed import TypedStore
from weir.state.types import IsolationLevel, StateId, TaskId

TEN = datetime(2013, 1, 1, 10, tzinfo=UTC)
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@pytest.fixture
def settings(tmp_path):
    """Task 0_1 holds two windows of UA-EWR and one of AA-JFK; the second of UA-EWR is not committed."""
    settings = Settings(dir=tmp_path)
    spec = next(spec for spec in app.topology.sub_topologies[0].stores if spec.name == "hourly")
    task = task_folder(settings.state_dir, app.id, app.topology.task_name(TaskId(0, 1)))
    store = TaskStore.create(task / "first", "0_1", [spec.name])
    set_current(task, "first")

    def apply(number: int, expected: StateId | None, rows: list[tuple[str, str, datetime, int]]) -> None:
        keys = pl.DataFrame(
            [
                {"carrier": carrier, "origin": origin, "window_start": start, "window_end": start + timedelta(hours=1)}
                for carrier, origin, start, _ in rows
            ],
            schema=spec.key,
        )
        values = pl.DataFrame(
            [{**{name: delay for name in spec.value}, "_ts": 0} for *_, delay in rows],
            schema={**spec.value, "_ts": pl.Int64()},
        )
        with store.session() as session:
            typed = TypedStore(spec, session)
            typed.write(typed.encode(keys), values)
            receipt = store.apply(
                session,
                state=StateId(1, number),
                expected=expected,
                generation=1,
                plan_hash=str(number),
                make_receipt=lambda _: b"receipt",
            )
        assert receipt is not None

    store.settle(generation=1, expected=None, committed=None)
    apply(1, None, [("UA", "EWR", TEN, 3), ("AA", "JFK", TEN, 5)])
    store.settle(generation=1, expected=StateId(1, 1), committed=StateId(1, 1))
    apply(2, StateId(1, 1), [("UA", "EWR", TEN + timedelta(hours=1), 4)])
    store.close()
    return settings


def ask(settings: Settings, store: str, isolation: IsolationLevel | None = None, **question: str) -> pl.DataFrame:
    return Question(**question).ask(StateReader(settings.dir, app), store, Query(isolation=isolation)).rows


def test_a_window_store_answers_with_all_windows_of_the_key_and_finished_values(settings):
    rows = ask(settings, "hourly", UNCOMMITTED, key="UA-EWR")
    assert rows["window_start"].to_list() == [TEN, TEN + timedelta(hours=1)]
    assert rows["flights"].to_list() == [3, 4]
    assert rows["mean_delay"].to_list() == [1.0, 1.0]  # kept as sum and count, which the fixture set alike


def test_windows_are_selected_by_start_time_and_for_all_keys_without_a_key(settings):
    assert ask(settings, "hourly", UNCOMMITTED, key="UA-EWR", from_time="2013-01-01T11:00")["flights"].to_list() == [4]
    assert ask(settings, "hourly", UNCOMMITTED, to_time="2013-01-01T10:00:00+00:00")["flights"].to_list() == [5, 3]


def test_read_committed_leaves_out_what_no_commit_covers(settings):
    assert ask(settings, "hourly", COMMITTED, key="UA-EWR")["flights"].to_list() == [3]
    assert ask(settings, "hourly", key="AA-JFK")["flights"].to_list() == [5]


def test_an_absent_key_is_not_an_error_but_an_unknown_store_is(settings):
    assert ask(settings, "hourly", key="ZZ-JFK").is_empty()
    with pytest.raises(QueryError, match="hourly, by_carrier"):
        ask(settings, "daily", key="UA-EWR")


def test_options_that_do_not_apply_to_the_kind_of_store_are_refused(settings):
    with pytest.raises(OperationError, match="--from does not apply to hourly, which is a window store"):
        ask(settings, "hourly", lower="UA")
    with pytest.raises(OperationError, match="--from-time does not apply to by_carrier"):
        ask(settings, "by_carrier", from_time="2013-01-01T10:00")


@pytest.mark.parametrize(
    ("store", "options", "found"),
    [
        ("spent", {}, [1200]),
        ("hourly", {}, [2]),
        ("visits", {}, [2]),
        ("prices", {}, [350]),
        ("prices", {"as_of": "2026-01-01T09:30"}, [300]),
    ],
)
def test_every_kind_of_store_takes_a_key_as_text_or_json_and_refuses_other_fields(tmp_path, store, options, found):
    shop.run(tmp_path)
    reader = StateReader(tmp_path, shop.app)
    column, key = ("item", "tea") if store == "prices" else ("customer", "ann")

    def ask(text: str) -> list[int]:
        rows = Question(key=text, **options).ask(reader, store, Query()).rows
        return rows["cents" if "cents" in rows.columns else "count"].to_list()

    assert ask(key) == ask(f'{{"{column}": "{key}"}}') == found
    with pytest.raises(OperationError, match=f"^KEY: .*'name' is not one of its columns.* column {column} "):
        ask('{"name": "ann"}')


def test_bounds_and_prefixes_take_json_too(tmp_path):
    shop.run(tmp_path)
    reader = StateReader(tmp_path, shop.app)

    def ask(**question: str) -> list[str]:
        return Question(**question).ask(reader, "spent", Query()).rows["customer"].to_list()

    assert ask(lower='{"customer": "b"}') == ask(prefix='{"customer": "b"}') == ask(prefix="b") == ["bob"]
    assert ask(upper='{"customer": "b"}') == ["ann"]
    for option, question in (("--from", "lower"), ("--to", "upper"), ("--prefix", "prefix")):
        with pytest.raises(OperationError, match=f"^{option}: .*'name' is not one of its columns.* column customer "):
            ask(**{question: '{"name": "b"}'})


@pytest.mark.parametrize(
    "question",
    [
        {"key": "ann", "lower": "a"},
        {"key": "ann", "prefix": "a"},
        {"prefix": "a", "upper": "b"},
        {"as_of": "2026-01-01T09:30"},
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path, question):
    shop.run(tmp_path)
    with pytest.raises(OperationError, match="--"):
        Question(**question).ask(StateReader(tmp_path, shop.app), "spent", Query())


def test_a_limit_bounds_the_rows_and_says_how_many_there_are(tmp_path):
    shop.run(tmp_path)
    register(Settings(dir=tmp_path), shop.app.id, "tests.pipelines.shop:app")

    def asked(*options: str):
        return CliRunner().invoke(weir, ["query", shop.app.id, "spent", *options, "--dir", str(tmp_path)])

    assert [row["customer"] for row in json.loads(asked("--limit", "1", "--json").stdout)["rows"]] == ["ann"]
    assert "1 of 2 rows" in asked("--limit", "1").stderr
    for everything in (asked(), asked("--limit", "0"), asked("--limit", "2")):
        assert ("bob" in everything.stdout, everything.stderr) == (True, "")


class Remember(Processor[str, int, None, None]):
    stores = (ListStore("cents_of", key=str, value=int),)

    def init(self, context):
        self.cents_of = context.state_store("cents_of")

    def process(self, record):
        self.cents_of.append(record.key, record.value)


def test_a_key_of_a_list_store_has_its_whole_list_and_places_do_not_show(tmp_path):
    builder = StreamsBuilder()
    builder.stream("orders", key=String("customer"), value=Int64("cents")).process(Remember)
    lists = Application("lists", builder)
    long = "a" * 600
    rows = [("ann", 5), ("anna", 7), ("ann", 6), ("bob", 1), (long, 2), (long, 3)]
    shop.run_over(
        lists, {("orders", 0): [(key.encode(), cents.to_bytes(8, "big"), 1_000) for key, cents in rows]}, tmp_path
    )
    reader = StateReader(tmp_path, lists)

    def ask(**question: str) -> list[tuple[str, int]]:
        return Question(**question).ask(reader, "cents_of", Query()).rows.drop("_ts").rows()

    assert ask(key="ann") == ask(key='{"key": "ann"}') == ask(lower="ann", upper="ann") == [("ann", 5), ("ann", 6)]
    assert ask(key=long) == [(long, 2), (long, 3)]
    assert ask(key="an") == []
    assert ask(prefix="ann") == [("ann", 5), ("ann", 6), ("anna", 7)]
    assert ask(lower="anna") == [("anna", 7), ("bob", 1)]
    assert reader.task_of("cents_of", "ann") == "orders_0"
    with pytest.raises(OperationError, match=r"the key has the column key \(str\), for example"):
        ask(key='{"key": "ann", "_place": 0}')


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["spent", "eve"], "spent has no rows for the key eve"),
        (["spent", "--from", "x", "--to", "y"], "spent has no rows with keys from x to y"),
        (["spent", "--from", "x"], "spent has no rows with keys from x on"),
        (["spent", "--to", "A"], "spent has no rows with keys up to A"),
        (["spent", "--prefix", "x"], "spent has no rows with keys that begin with x"),
        (["prices", "tea", "--as-of", "2025-01-01"], "prices has no rows for the key tea as of 2025-01-01"),
        (
            ["hourly", "ann", "--from-time", "2027-01-01"],
            "has no rows for the key ann with times from 2027-01-01 on; a",
        ),
    ],
)
def test_an_empty_answer_repeats_the_question(tmp_path, options, said):
    shop.run(tmp_path)
    register(Settings(dir=tmp_path), shop.app.id, "tests.pipelines.shop:app")
    assert said in CliRunner().invoke(weir, ["query", shop.app.id, *options, "--dir", str(tmp_path)]).stdout


def test_a_folder_without_state_says_so(tmp_path):
    with pytest.raises(QueryError, match="run it first"):
        ask(Settings(dir=tmp_path), "hourly", key="UA-EWR")


def test_the_error_for_a_wrong_position_or_time_says_how_to_write_it():
    assert _position("flights-0=100, my-topic-12=7") == {"flights": {0: 100}, "my-topic": {12: 7}}
    assert _moment("2013-01-01T10:00", "--as-of") == TEN
    with pytest.raises(OperationError, match="flights-0=100"):
        _position("flights=3")
    with pytest.raises(OperationError, match="2013-01-01T10:00:00Z"):
        _moment("ten", "--as-of")
