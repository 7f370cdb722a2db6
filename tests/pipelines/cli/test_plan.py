"""``weir plan`` says in advance what ``weir run`` will do."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from tests.pipelines.cli.typed import opened
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, program, sales
from tests.pipelines.topology.programs import committed, held
from weir import Application, StreamsBuilder, String
from weir.infra.settings import Settings
from weir.pipelines.cli import plan
from weir.pipelines.cli.app import app
from weir.pipelines.operations import plan as operation
from weir.pipelines.operations.tables import newest_rows
from weir.pipelines.spark.errors import OtherApplicationError
from weir.pipelines.topology.changes import Fate, compare
from weir.state.commit.protocol import newest_commit

OTHERS = {
    "kept": lambda: program(positive_only=True),
    "renamed": lambda: program(store="other"),
    "beside": lambda: program(by_amount=True),
    "output": lambda: program(output="new_totals"),
    "refunds": lambda: program(refunds=True),
    "columns": lambda: program(total="sum"),
    "upserts": lambda: program(mode="upsert"),
    "unrelated": lambda: unrelated(),
}


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """``planned(program, *flags)``: the result of the command in a folder in which ``sales`` has run."""
    topics = Topics({("sales", partition): sales(20, partition) for partition in (0, 1)}, ids={"sales": "first"})
    Place(application(), topics, tmp_path).run()
    counts = {**topics.partition_counts(), "refunds": 2}
    monkeypatch.setattr(operation, "source_counts", lambda *_: counts)
    monkeypatch.setattr(operation, "KafkaAdmin", lambda *_: topics)
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", "nobody:1")

    def run(name, *flags):
        monkeypatch.setattr(operation, "load_reference", lambda reference: OTHERS[name]())
        return CliRunner().invoke(app, ["plan", "module:app", "--dir", str(tmp_path), *flags])

    run.topics = topics
    return run


def test_a_program_that_keeps_all_state_may_start(planned):
    result = planned("kept")
    assert (result.exit_code, "store sums: continues" in result.stdout) == (0, True), result.output
    assert "committed by another topology" in result.stdout


def test_state_that_would_be_lost_is_named_and_ends_with_code_3(planned, tmp_path):
    result = planned("renamed")
    assert result.exit_code == plan.REFUSED, result.output
    for line in (
        "store other: begins empty",
        "store sums: is kept aside",
        "call it 'sums'",
        f"`weir run module:app --accept-state-loss --dir {tmp_path}`",
    ):
        assert line in result.stdout
    beside = planned("beside", "--json")
    shown = json.loads(beside.stdout)
    assert (beside.exit_code, shown["refused"]) == (0, False)
    assert [(each["store"], each["fate"]) for each in shown["stores"]] == [
        ("sums", "continues"),
        ("by_amount", "begins empty"),
    ]
    assert shown["outputs_added"] == ["by_amount"]


def test_added_and_removed_outputs_are_no_obstacle(planned):
    result = planned("output")
    assert result.exit_code == 0, result.output
    assert "output new_totals: new" in result.stdout
    assert "output totals: no longer written" in result.stdout


def test_an_added_output_whose_table_exists_continues_it(planned, tmp_path):
    place = Place(OTHERS["output"](), planned.topics, tmp_path)
    place.run()
    assert "output totals: continues the table that is there: its rows stay" in planned("kept").stdout
    assert json.loads(planned("kept", "--json").stdout)["outputs_continued"] == ["totals"]
    before = newest_rows(Settings(dir=tmp_path), "sales", "totals")
    Place(OTHERS["kept"](), planned.topics, tmp_path).run()
    assert newest_rows(Settings(dir=tmp_path), "sales", "totals").equals(before)


def unrelated() -> Application:
    builder = StreamsBuilder()
    clicks = builder.stream("refunds", key=String("user"), value=String("page"))
    clicks.group_by_key().count("clicks").to_delta("clicks_out")
    return Application("sales", builder)


def test_a_program_that_shares_nothing_with_the_committed_one_is_taken_for_another_application(planned, tmp_path):
    result = planned("unrelated")
    assert result.exit_code == plan.REFUSED
    for words in (
        "this folder already has an application 'sales', whose program has no store, topic or output in common with",
        'Application("other-id", ...), or another folder with `weir run module:app --dir OTHER_DIR`',
        f"`weir run module:app --accept-state-loss --dir {tmp_path}`",
    ):
        assert words in result.stdout
    topics = Topics({("refunds", 0): [(b"ann", b"home", 1_000)]})
    with pytest.raises(OtherApplicationError, match="probably two applications with the same id") as refused:
        Place(unrelated(), topics, tmp_path).run()
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    Place(unrelated(), topics, tmp_path / "other").run()
    Place(unrelated(), topics, tmp_path).run(accept_state_loss=True)
    assert newest_rows(Settings(dir=tmp_path), "sales", "clicks_out")["count"].to_list() == [1]


def test_added_and_removed_topics_are_named(planned, tmp_path):
    result = planned("refunds")
    assert (result.exit_code, "topic refunds: new, read from" in result.stdout) == (0, True), result.output
    topics = Topics({(topic, 0): sales(5, 0) for topic in ("sales", "refunds")})
    place = Place(OTHERS["refunds"](), topics, tmp_path / "with refunds")
    place.run()
    change = compare(newest_commit(place.warehouse, "sales"), OTHERS["kept"]().topology, {0: 1})
    assert (change.topics_added, change.topics_removed) == ((), ("refunds",))
    assert (change.of(Fate.IS_KEPT_ASIDE), change.outputs_removed) == (("refunds",), ("refunds",))


def test_a_table_with_other_columns_is_an_obstacle_and_the_way_out_is_named(planned):
    result = planned("columns")
    assert result.exit_code == plan.REFUSED
    assert "refuse: table 'totals' of 'sales' cannot take this program's rows: `total` is left out" in result.stdout
    assert "another name" in result.stdout


def test_another_mode_of_an_output_is_an_obstacle_and_no_new_output(planned):
    result = planned("upserts")
    assert result.exit_code == plan.REFUSED
    assert "refuse: table 'totals' was written with mode=\"append\"" in " ".join(result.stdout.split())
    assert "output totals: new" not in result.stdout


def test_another_grace_period_is_named_and_the_state_is_kept(planned, monkeypatch):
    monkeypatch.setattr(operation, "newest_commit", lambda *_: committed(held().build()))
    monkeypatch.setattr(operation, "source_counts", lambda *_: {"sales": 1, "rates": 1})
    monkeypatch.setitem(OTHERS, "longer grace", lambda: Application("sales", held(grace=timedelta(minutes=2))))
    result = planned("longer grace")
    assert result.exit_code == 0, result.output
    assert "store waiting: grace was 0:01:00 and is now 0:02:00" in result.stdout
    assert json.loads(planned("longer grace", "--json").stdout)["settings"] == [
        {"store": "waiting", "setting": "grace", "before": "0:01:00", "now": "0:02:00"}
    ]


def test_a_topic_that_was_made_anew_is_named_with_where_it_could_be_read_on(planned, tmp_path):
    planned.topics.ids["sales"] = "second"
    result = planned("kept")
    assert result.exit_code == plan.REFUSED
    assert (
        "refuse: it continues from offset 20 of topic 'sales', partition 1, but the topic was deleted" in result.stdout
    )
    way_out = f"`weir run module:app --accept-lost-records --dir {tmp_path}` keeps all state and reads the topic on at "
    assert result.stdout.count(f"{way_out}offset 0") == 2
    shown = json.loads(planned("kept", "--json").stdout)
    assert (shown["refused"], [each["resume"] for each in shown["lost_positions"]]) == (True, [0, 0])


def test_a_commit_log_that_is_gone_is_an_obstacle(planned, tmp_path):
    shutil.rmtree(tmp_path / "warehouse" / "sales" / "_commits")
    result = planned("kept")
    assert (result.exit_code, "refuse: application 'sales' has run before" in result.stdout) == (plan.REFUSED, True)
    shown = json.loads(planned("kept", "--json").stdout)
    assert (shown["refused"], shown["committed_epoch"], len(shown["obstacles"])) == (True, None, 1)


def test_an_application_without_a_commit_starts_from_the_beginning(planned, tmp_path):
    result = planned("kept", "--dir", str(tmp_path / "elsewhere"))
    assert result.exit_code == 0
    assert "starts from the beginning" in result.stdout


EMPTY_PROGRAM = """
from weir import Application, StreamsBuilder, String

builder = StreamsBuilder()
orders = builder.stream("orders", key=String("id"), value=String("what"))
{added}
app = Application("shop", builder)
"""


@pytest.mark.parametrize(
    ("added", "is_refused"),
    [
        ("", True),
        ("orders.select_key('what')", True),
        ("builder.global_table('prices', key=String('k'), value=String('v'), store='prices')", True),
        ('orders.to_delta("name")', False),
        ('orders.group_by_key().count("name")', False),
        ("orders.for_each(print)", False),
    ],
)
def test_a_program_that_leaves_nothing_is_refused_and_each_way_out_works(tmp_path, monkeypatch, added, is_refused):
    module = f"leaves_{abs(hash(added))}"
    (tmp_path / f"{module}.py").write_text(EMPTY_PROGRAM.format(added=added))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = CliRunner().invoke(app, ["plan", f"{module}:app"])
    words = (
        "'shop' has no output and no store, so a run would read its topics and leave nothing; end a stream or table "
    )
    assert (words in " ".join(result.stderr.split())) == is_refused, result.output
    assert result.exit_code == is_refused
    if is_refused:
        assert 'with .to_delta("name"), or keep state, for example with .group_by_key().count("name")' in result.stderr
        result = CliRunner().invoke(app, ["run", f"{module}:app", "--until-caught-up"])
        assert (words in " ".join(result.stderr.split()), result.exit_code) == (True, 1)


def test_a_sink_without_its_variable_or_database_is_refused_by_plan_and_run_until_they_are_set(tmp_path, monkeypatch):
    terminal = opened(tmp_path, monkeypatch)
    terminal.topics.rows["orders", 0] = []
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=String("order"))
    orders.to_http("http://localhost:1/orders", name="posted", headers={"Authorization": "env:SHOP_TOKEN"})
    orders.to_sql("orders", name="kept", url="env:SHOP_DATABASE")
    orders.to_delta("orders")
    program = terminal.has("app", Application("shop", builder))
    variables = {"SHOP_TOKEN": "secret", "SHOP_DATABASE": f"sqlite:///{tmp_path}/out.db"}
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    told = terminal.weir(f"plan {program}").text
    assert all(f"variable {variable}" in told for variable in variables)
    for variable, value in variables.items():
        planned, begun = terminal.weir(f"plan {program}"), terminal.run(program)
        assert (planned.code, begun.code) == (3, 1)
        for answer in (planned, begun):
            assert re.search(rf"variable {variable}(, which)? is not set; set it (to the URL .*)?and", answer.text)
        monkeypatch.setenv(variable, value)
    assert terminal.weir(f"plan {program}").code == 0
    assert not (tmp_path / "warehouse" / "shop").exists()
