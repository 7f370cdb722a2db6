"""Runs and requests that are refused because of what runs, or does not: each way out of the message is typed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event

import lmdb
import polars as pl
import pytest
from confluent_kafka import Producer

from tests.pipelines.backfill.inline import copy
from tests.pipelines.cli.by_user import by_user, counted, counts
from tests.pipelines.cli.typed import BROKERS, NO_BROKERS, Answer, Terminal, opened
from tests.pipelines.spark.evolving import Click, clicks
from tests.pipelines.spark.inline import Topics
from tests.waiting import wait_for
from weir import Application, Count, Json, Max, StreamsBuilder, String
from weir.infra.control import ControlDatabase, this_host
from weir.pipelines.operations import control
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.spark import runner
from weir.state.commit.tables import read_table
from weir.state.stores.codec import KeyCodec, RowCodec


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A folder in which ``clicks`` has counted 40 records."""
    with pytest.MonkeyPatch.context() as patch:
        there = opened(tmp_path_factory.mktemp("template"), patch)
        there.topics.rows["clicks", 0] = clicks(0, 40)
        succeeded(there.run(there.has("app", by_user())))
    return there.folder


@pytest.fixture
def there(terminal, template, monkeypatch) -> Terminal:
    copy(template, terminal.folder)
    terminal.topics.rows["clicks", 0] = clicks(0, 40)
    terminal.has("app", by_user())
    return terminal


def refused(answer: Answer, text: str) -> Answer:
    assert (answer.code, text in answer.text) == (1, True), answer.text
    return answer


def succeeded(answer: Answer) -> Answer:
    assert answer.code == 0, answer.text
    return answer


def test_where_nothing_has_run_an_application_is_run_or_another_folder_named(there, tmp_path):
    elsewhere = Terminal(tmp_path / "elsewhere", there.clusters, there.programs)
    found = refused(elsewhere.weir("show clicks users"), "name another folder with `--dir DIR`")
    succeeded(elsewhere.weir(f"show clicks users --dir {there.folder}"))
    succeeded(elsewhere.take("run MODULE:APP", found, "--until-caught-up", MODULE="programs:app"))
    assert counts(elsewhere) == counted(there)


NEED_A_COMMIT = ("backfill run clicks --everything", "compact clicks", "state list clicks", "migrate to-group clicks g")


def test_what_needs_a_commit_is_done_after_the_first_run(terminal):
    terminal.clusters[BROKERS] = Topics()
    program = terminal.has("app", by_user())
    refused(terminal.run(program), "does not exist")
    for command in NEED_A_COMMIT:
        found = refused(terminal.weir(command), "clicks")
        assert "run MODULE:APP" in found.commands
    terminal.topics.rows["clicks", 0] = clicks(0, 20)
    succeeded(terminal.take("run MODULE:APP", found, "--until-caught-up", MODULE=program))
    for command in NEED_A_COMMIT:
        succeeded(terminal.weir(command))


def test_a_program_that_is_not_registered_is_started_once(there):
    (there.folder / "applications" / "clicks.json").unlink()
    found = refused(there.weir("query clicks users user-1"), "no program is registered for 'clicks'")
    succeeded(there.take("run MODULE:APP", found, "--until-caught-up", MODULE="programs:app"))
    assert "user-1" in succeeded(there.weir("query clicks users user-1")).text


def test_a_log_that_is_missing_is_written_by_a_run(there):
    shutil.rmtree(there.settings.logs)
    found = refused(there.weir("logs clicks"), "clicks has no log in")
    succeeded(there.take("run MODULE:APP", found, "--until-caught-up", MODULE="programs:app"))
    assert "generation 2 of 'clicks' starts" in succeeded(there.weir("logs clicks")).text


def test_state_that_is_not_on_this_host_is_restored_by_a_run(there):
    shutil.rmtree(there.settings.state_dir)
    found = refused(there.weir("query clicks users user-1"), "has no state in")
    succeeded(there.take("run MODULE:APP", found, "--until-caught-up", MODULE="programs:app"))
    wanted = counted(there)["user-1"]
    answer = succeeded(there.weir("query clicks users user-1 --json"))
    assert [row["n"] for row in json.loads(answer.text)["rows"]] == [wanted]


def test_rows_of_another_version_are_read_by_the_one_that_ran_last_or_by_this_one_once_it_has_run(there):
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    stream.group_by_key().agg("users", n=Count(), newest=Max("ms")).to_delta("users")
    there.has("app", Application("clicks", builder))
    asked = "query clicks users user-1 --json"
    found = refused(there.weir(asked), "or read them with the one that ran last")
    there.has("app", by_user())
    n = counted(there)["user-1"]
    (row,) = json.loads(succeeded(there.weir(asked)).text)["rows"]
    assert (row["user"], row["n"]) == ("user-1", n)
    there.has("app", Application("clicks", builder))
    succeeded(there.take("run MODULE:APP", found, "--until-caught-up", MODULE="programs:app"))
    (row,) = json.loads(succeeded(there.weir(asked)).text)["rows"]
    assert (row["user"], row["n"], row["newest"]) == ("user-1", n, None)


def test_a_position_that_is_not_reached_is_reached_by_an_application_that_status_shows_as_stopped(there):
    there.topics.rows["clicks", 0] += clicks(40, 5)
    asked = "query clicks users user-1 --json --at-least clicks-0=45 --timeout 0"
    found = refused(there.weir(asked), "has not reached the requested position")
    assert "clicks stopped" in succeeded(there.take("status", found)).text
    succeeded(there.run("programs:app"))
    (row,) = json.loads(succeeded(there.weir(asked)).text)["rows"]
    assert row["n"] == counted(there)["user-1"]


def test_what_needs_a_driver_is_done_once_one_runs(there):
    found = refused(there.weir("commit clicks"), "is not running")
    with there.typing_beside("commit clicks", "stop clicks") as codes:
        succeeded(there.take("run MODULE:APP", found, MODULE="programs:app"))
    assert codes == [0, 0]


def holding(hold: Callable[[Click], None]) -> Application:
    """The program with a function that may keep an epoch from its end."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    stream = stream.filter(lambda key, value: hold(value) is None)
    stream.group_by_key().agg("users", n=Count()).to_delta("users")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


def test_the_log_shows_what_a_driver_did_last_that_does_not_answer(there, monkeypatch):
    """Its epoch lasts until the commands have been typed."""
    monkeypatch.setattr(control, "ANSWER_LIMIT_S", 0.0)
    begun = Event()

    def hold(value: Click) -> None:
        begun.set()
        wait_for(lambda: len(codes) == 2, "the commands are typed", every_s=0.01)

    there.topics.rows["clicks", 0] += clicks(40, 5)
    program = there.has("app", holding(hold))
    with there.typing_beside("commit clicks", "logs clicks", once=begun) as codes:
        text = succeeded(there.run(program)).text
    assert codes == [1, 0]
    assert "has not answered within 0 s; `weir logs clicks` shows what it did last" in text
    assert logged(text).endswith("a run begins. driver has 0_0 (had none). Moves: none")


def test_the_log_shows_what_a_driver_did_last_that_is_still_stopping(there, monkeypatch):
    """Its Spark takes long to stop."""

    @contextmanager
    def slow_to_stop(*arguments: object) -> Iterator[None]:
        yield
        wait_for(lambda: len(codes) == 2, "the commands are typed", every_s=0.01)

    monkeypatch.setattr(runner, "spark_context", slow_to_stop)
    monkeypatch.setitem(control.wait_for_end.__kwdefaults__, "limit_s", 0.0)
    with there.typing_beside("stop clicks", "logs clicks") as codes:
        text = succeeded(there.weir("run programs:app")).text
    assert codes == [1, 0]
    assert "is still stopping after 0 s; `weir logs clicks` shows what it did last" in text
    assert "stop command line" in logged(text)


def logged(text: str) -> str:
    """The lines of the log in what was printed, without what the driver printed when it had ended."""
    return text[text.index("weir.driver: ") : text.index(" clicks ", text.rindex("weir.driver: "))]


def test_the_log_says_why_a_driver_ended_before_it_answered(there, capsys):
    begun, database = Event(), ControlDatabase(there.settings.control_database_url)

    def fail(value: Click) -> None:
        begun.set()
        wait_for(lambda: database.pending_requests("clicks"), "a commit is asked for", every_s=0.01)
        raise ValueError("no such page")

    there.topics.rows["clicks", 0] += clicks(40, 5)
    program = there.has("app", holding(fail))
    with there.typing_beside("commit clicks", once=begun) as codes:
        run = refused(there.run(program), "no such page")
    assert codes == [1]
    # Whatever is printed while the run has not ended is in its answer.
    found = Answer(1, run.text + capsys.readouterr().err.replace(f" --dir {there.folder}", ""))
    refused(found, "ended before it could commit")
    assert "ValueError: no such page" in succeeded(there.take("logs clicks", found)).text


def test_a_lease_that_is_held_ends_with_a_stop(there):
    with there.typing_beside("reset clicks --yes", "stop clicks") as codes:
        text = succeeded(there.weir("run programs:app")).text
    assert codes == [1, 0]
    refused(Answer(1, text), "stop it with `weir stop clicks`")
    succeeded(there.weir("reset clicks"))
    succeeded(there.run("programs:app"))
    assert counts(there) == counted(there)


def test_a_lease_that_is_held_is_taken_over(there):
    ControlDatabase(there.settings.control_database_url).acquire_lease(
        "clicks", owner="weir run", pid=os.getpid(), host=this_host(), ttl_s=60
    )
    there.topics.rows["clicks", 0] += clicks(40, 5)
    found = refused(there.run("programs:app"), "is already driven by weir run")
    succeeded(there.take("run MODULE:APP --take-over", found, "--until-caught-up", MODULE="programs:app"))
    assert counts(there) == counted(there)


def test_a_topic_that_does_not_exist_is_created_and_brokers_that_are_away_are_named_right(terminal, monkeypatch):
    monkeypatch.setattr(runner, "FIRST_ANSWER_LIMIT_S", 0.0)
    terminal.clusters[BROKERS] = Topics()
    program = terminal.has("app", by_user())
    refused(
        terminal.run(program, "--bootstrap-servers", NO_BROKERS), "check that it runs and that the address is right"
    )
    found = refused(terminal.run(program), "topic 'clicks' does not exist")
    succeeded(terminal.take("kafka create clicks", found))
    terminal.topics.rows["clicks", 2] += clicks(0, 10)
    succeeded(terminal.run(program))
    assert counts(terminal) == counted(terminal)


def test_topics_that_do_not_exist_are_named_and_created_together(terminal):
    terminal.clusters[BROKERS] = Topics()
    builder = StreamsBuilder()
    for topic in ("views", "clicks", "orders"):
        builder.stream(topic, key=String("user"), value=Json(Click)).to_delta(f"all_{topic}")
    program = terminal.has("app", Application("clicks", builder))
    text = f"topics 'clicks', 'orders' and 'views' do not exist at {BROKERS}; create them"
    found = refused(terminal.run(program), text)
    succeeded(terminal.take("kafka create clicks orders views", found))
    terminal.topics.rows["views", 2] += clicks(0, 10)
    succeeded(terminal.run(program))
    assert read_table(terminal.warehouse / "clicks" / "all_views").height == 10
    terminal.clusters[BROKERS] = Topics(
        {place: rows for place, rows in terminal.topics.rows.items() if "views" in place}
    )
    refused(terminal.weir(f"plan {program}"), "topics 'clicks' and 'orders' do not exist")


def test_a_store_in_use_is_removed_after_a_program_without_it_has_run(there):
    text = "take it out of the program, run that, and remove it then"
    found = refused(there.weir("state remove clicks users"), text)
    assert "Delete the store" not in found.text  # nothing is asked that would be refused
    there.has("app", without_stores())
    succeeded(there.run("programs:app"))
    succeeded(there.weir("state remove clicks users"))
    assert not (there.warehouse / "clicks" / "_changelog" / "users").exists()


def without_stores() -> Application:
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=Json(Click)).to_delta("passed")
    return Application("clicks", builder)


def by_page() -> Application:
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    stream.group_by("page").agg("pages", n=Count()).to_delta("pages")
    return Application("clicks", builder)


def test_a_program_that_lacks_tasks_is_verified_once_it_has_run_or_the_other_is_back(there):
    succeeded(there.run(there.has("app", by_page())))
    there.has("app", without_stores())
    found = refused(there.weir("verify clicks"), "put the one that made the commit back")
    there.has("app", by_page())
    succeeded(there.weir("verify clicks"))
    there.has("app", without_stores())
    succeeded(there.take("run MODULE:APP", found, "--until-caught-up", MODULE="programs:app"))
    succeeded(there.weir("verify clicks"))


def put_a_wrong_row(there: Terminal) -> None:
    """As a faulty disk would, for the first user."""
    (store,) = by_user().topology.sub_topologies[0].stores
    key = KeyCodec(store.key, store.kind).encode(pl.DataFrame({"user": ["user-0"]}))[0]
    row = RowCodec(store.value).encode(pl.DataFrame({"n": [999], "_ts": [0]}))[0]
    (data,) = there.settings.state_dir.glob("clicks/*/*/data.mdb")
    with lmdb.open(str(data.parent), max_dbs=8, map_size=1 << 30) as raw, raw.begin(write=True) as txn:
        assert txn.replace(key, row, db=raw.open_db(b"users", txn=txn))


def test_a_store_that_differs_from_its_changelog_is_restored_from_it(there):
    put_a_wrong_row(there)
    found = refused(there.weir("verify clicks"), "the changelog is the truth")
    (restore,) = found.commands
    with there.typing_beside(restore, "stop clicks") as codes:
        succeeded(there.weir("run programs:app"))
    assert codes == [0, 0]
    succeeded(there.weir("verify clicks"))
    there.topics.rows["clicks", 0] += clicks(40, 20)
    succeeded(there.run("programs:app"))
    assert counts(there) == counted(there)


@dataclass(frozen=True)
class Corrected:
    page: str | None
    ms: int


@pytest.fixture
def stopped(there) -> Answer:
    """What a run says to a record without a page."""
    there.topics.rows["clicks", 0] += [(b"user-3", b'{"page": null, "ms": 1}', 40_000), *clicks(41, 5)]
    return refused(there.run("programs:app"), "stopped at topic 'clicks', partition 0, offset 40")


def test_a_bad_record_is_read_with_a_corrected_schema(there, stopped):
    assert "Correct the declared schema" in stopped.text
    succeeded(there.run(there.has("app", by_user(Corrected))))
    assert counts(there) == counted(there)


def test_a_bad_record_goes_to_the_dead_letters(there, stopped):
    (setting,) = re.findall(r'Application\(\.\.\., (on_error="\w+")\)', stopped.text)
    succeeded(there.run(there.has("app", eval(f"by_user({setting})"))))
    assert read_table(there.warehouse / "clicks" / "_dead_letters")["offset"].to_list() == [40]
    wanted = counted(there)
    assert counts(there) == {**wanted, "user-3": wanted["user-3"] - 1}


def test_a_function_is_corrected_and_a_new_start_repeats_the_epoch(there):
    def failing(key: str, value: Click) -> bool:
        return value.ms != 40 // (41 - value.ms)

    def program(function) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream("clicks", key=String("user"), value=Json(Click)).filter(function)
        stream.group_by_key().agg("users", n=Count()).to_delta("users")
        return Application("clicks", builder)

    there.topics.rows["clicks", 0] += clicks(40, 5)
    found = refused(there.run(there.has("app", program(failing))), "correct the function")
    assert "a new start repeats this one" in found.text
    succeeded(there.run(there.has("app", program(lambda key, value: value.ms >= 0))))
    assert counts(there) == counted(there)


def filtered(predicate, **settings) -> Application:
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click)).filter(predicate)
    stream.group_by_key().agg("users", n=Count()).to_delta("users")
    return Application("clicks", builder, **settings)


def not_forty(key: str, value: Click) -> bool:
    return 1 / (value.ms - 40) != 0


FAILING = [not_forty, pl.when(pl.col("ms") == 40).then(pl.lit("x")).otherwise(pl.lit("1")).cast(pl.Int64) == 1]


def test_an_expression_is_corrected_and_a_new_start_repeats_the_epoch(there):
    there.topics.rows["clicks", 0] += clicks(40, 5)
    refused(there.run(there.has("app", filtered(FAILING[1]))), "correct the expression")
    succeeded(there.run(there.has("app", filtered(pl.col("ms") >= 0))))
    assert counts(there) == counted(there)


@pytest.mark.parametrize("predicate", FAILING)
def test_what_fails_in_an_operator_goes_to_the_dead_letters(there, predicate):
    there.topics.rows["clicks", 0] += clicks(40, 5)
    found = refused(there.run(there.has("app", filtered(predicate))), "put such records aside")
    (setting,) = re.findall(r'Application\(\.\.\., (on_processing_error="\w+")\)', found.text)
    succeeded(there.run(there.has("app", eval(f"filtered(predicate, {setting})"))))
    (letter,) = read_table(there.warehouse / "clicks" / "_dead_letters").rows(named=True)
    assert (letter["offset"], letter["stage"]) == (40, "processing")
    wanted, user = counted(there), letter["key"].decode()
    assert counts(there) == {**wanted, user: wanted[user] - 1}


def test_a_port_that_is_taken_is_left_out_or_another_chosen(there):
    there.topics.rows["clicks", 0] += clicks(40, 5)
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        port, free = taken.getsockname()[1], other.getsockname()[1]
        other.close()
        refused(there.run(f"programs:app --metrics-port {port}"), "choose another --metrics-port, or leave it out")
        succeeded(there.run(f"programs:app --metrics-port {free}"))
        assert counts(there) == counted(there)
        there.topics.rows["clicks", 0] += clicks(45, 5)
        succeeded(there.run("programs:app"))
    assert counts(there) == counted(there)


def joined(*, repartitions: bool) -> Application:
    """Clicks with the names of their users."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    names = builder.table("names", key=String("user"), value=String("name"), store="names")
    (stream.repartition(name="clicks-by-user") if repartitions else stream).join(names).to_delta("named")
    return Application(f"named-{repartitions}", builder)


def placed(rows: list, topic: str, partitions: int) -> dict:
    """Records where Kafka's default partitioner puts them."""
    found: dict = {(topic, partition): [] for partition in range(partitions)}
    for row in rows:
        found[topic, int(murmur2([row[0]])[0] & 0x7FFFFFFF) % partitions].append(row)
    return found


def test_topics_that_are_joined_get_as_many_partitions_or_a_repartition(terminal):
    names = [(b"user-%d" % number, b"name-%d" % number, 0) for number in range(20)]
    wanted = sorted((key.decode(), f"name-{key.decode().removeprefix('user-')}") for key, _, _ in clicks(0, 60))
    terminal.topics.rows |= placed(clicks(0, 60), "clicks", 2) | placed(names, "names", 3)
    plain, repartitioned = (terminal.has(f"app_{each}", joined(repartitions=each)) for each in (False, True))
    found = refused(terminal.run(plain), "names has 3")
    assert "give them the same number of partitions and the same partitioner, or repartition the streams" in found.text
    succeeded(terminal.run(repartitioned))
    terminal.clusters[BROKERS] = Topics(placed(clicks(0, 60), "clicks", 3) | placed(names, "names", 3))
    succeeded(terminal.run(plain))
    for application in ("named-False", "named-True"):
        rows = read_table(terminal.warehouse / application / "named")
        assert sorted(rows.select("user", "name").rows()) == wanted


def key_partitions(keys: list[bytes], **properties: str) -> dict[bytes, int]:
    """Where librdkafka's producer with these properties puts keys; its own brokers in memory have topics of four
    partitions."""
    found: dict[bytes, int] = {}
    producer = Producer({"test.mock.num.brokers": 1, **properties})
    for key in keys:
        producer.produce(
            "any", key=key, on_delivery=lambda _, message: found.update({message.key(): message.partition()})
        )
    assert producer.flush(30) == 0
    assert producer.list_topics("any", timeout=30).topics["any"].partitions.keys() == set(range(4))
    return found


def named_pages(*, is_repartitioned: bool) -> Application:
    """Clicks with the names of their pages: a lookup behind a repartition in a topic of names by page."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    if is_repartitioned:
        named = builder.stream("names", key=String("page"), value=String("name"))
        names = named.repartition(name="names-by-page").to_table("names")
    else:
        names = builder.table("names", key=String("page"), value=String("name"), store="names")
    clicks.select_key(page="page").join(names).to_delta("named")
    return Application(f"named-{is_repartitioned}", builder)


def test_a_topic_with_another_partitioner_is_repartitioned_or_its_producer_set_to_murmur2(terminal):
    names = [(b"page-%d" % number, b"name-%d" % number, 0) for number in range(40)]
    rows = [
        (b"user-%d" % number, json.dumps({"page": f"page-{number % 40}", "ms": 1}).encode(), 1) for number in range(60)
    ]
    wanted = sorted((f"page-{number % 40}", f"name-{number % 40}") for number in range(60))

    def put(**properties: str) -> None:
        partitions = key_partitions([key for key, _, _ in names], **properties)
        topics = {("clicks", number): rows[number::4] for number in range(4)}
        topics |= {("names", number): [row for row in names if partitions[row[0]] == number] for number in range(4)}
        terminal.clusters[BROKERS] = Topics(topics)

    plain, repartitioned = (terminal.has(f"app_{each}", named_pages(is_repartitioned=each)) for each in (False, True))
    put()
    found = refused(terminal.run(plain), "begin with stream.repartition(...).to_table(...)")
    succeeded(terminal.run(repartitioned))
    ((name, value),) = re.findall(r"the producer's property (\S+)=(\w+)", found.text)
    put(**{name: value})
    succeeded(terminal.run(plain))
    for application in ("named-False", "named-True"):
        named = read_table(terminal.warehouse / application / "named")
        assert sorted(named.select("page", "name").rows()) == wanted
