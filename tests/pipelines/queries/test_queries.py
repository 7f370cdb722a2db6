"""One suite over stores on this host's disk and over those that a server on another one would answer for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from pyarrow import flight
from typer.testing import CliRunner

from tests.pipelines.queries import market
from tests.pipelines.queries.market import MINUTE, NINE, PARTITIONS, RECORDS, sold
from tests.pipelines.spark.following import follow_to
from tests.pipelines.spark.inline import Place, Topics
from tests.traces import command_lines
from weir import Query, QueryError, StateReader
from weir.infra.control import ControlDatabase
from weir.infra.control.rows import QueryServerRow, TaskStatusRow
from weir.infra.process import start_ticks
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app as weir
from weir.pipelines.operations.registry import register
from weir.pipelines.queries import remote
from weir.pipelines.queries.contract import AwayError, Question
from weir.pipelines.queries.remote import RemoteStores
from weir.pipelines.queries.started import Ready, ServerSettings
from weir.state.commit.protocol import newest_commit
from weir.state.types import IsolationLevel

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOKEN = "a-token-that-nobody-guesses"
EVERYTHING = {"sales": dict.fromkeys(range(PARTITIONS), 0)}
for each in sold():
    EVERYTHING["sales"][market.partition_of(each.shop)] += 1
TOLD = {"towns": dict(Counter(market.partition_of(shop) for shop, _ in market.moved()))}
SOON = Query(timeout=timedelta(seconds=20))


class Market(Place):
    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "market"


def run(folder: Path) -> Market:
    """Leaves in ``folder`` what ``weir run`` leaves below ``--dir``."""
    place = Market(market.app, Topics(market.records()), folder, max_records=30)
    place.run()
    return place


@contextmanager
def server(place: Place) -> Iterator[tuple[QueryServerRow, subprocess.Popen[bytes]]]:
    """A server over what ``place`` has on its disk, as an executor's."""
    settings = ServerSettings(
        reference="tests.pipelines.queries.market:app",
        application_folder=str(place.warehouse / "market"),
        state_folder=str(place.state_folder),
        host="127.0.0.1",
        token=TOKEN,
        process=os.getpid(),
        process_start=start_ticks(os.getpid()),
    )
    with subprocess.Popen(
        [sys.executable, "-m", "weir.pipelines.queries.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        try:
            started.stdin.write(msgspec.json.encode(settings) + b"\n")
            started.stdin.close()
            ready = msgspec.json.decode(started.stdout.readline(), type=Ready)
            yield (
                QueryServerRow(
                    executor="1",
                    host="127.0.0.1",
                    port=ready.port,
                    token=TOKEN,
                    machine=ready.machine,
                    folder=ready.folder,
                ),
                started,
            )
        finally:
            started.kill()


class Elsewhere:
    """A host without stores, whose control database knows of servers."""

    def __init__(self, folder: Path, place: Place) -> None:
        self.folder, self.place = folder, place
        self.database = ControlDatabase(Settings(dir=folder).control_database_url)
        self.database.acquire_lease("market", owner="a test", pid=os.getpid(), host="elsewhere", ttl_s=600)

    def tell(self, *servers: QueryServerRow, executor: str = "1", **task: object) -> None:
        self.database.report_query_servers("market", servers)
        names = [folder.name for folder in self.place.state_folder.iterdir() if (folder / "CURRENT").exists()]
        ids = [str(self.place.application.topology.task_of(name)) for name in names]
        given = {"slot": 0, "status": "running", "state": "1.1", **task}
        self.database.report_tasks("market", [TaskStatusRow(task=id, executor=executor, **given) for id in ids])

    def reader(self, **options: str) -> StateReader:
        return StateReader(self.folder, self.place.application, warehouse=self.place.warehouse, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return run(tmp_path_factory.mktemp("market"))


@pytest.fixture(scope="module")
def served(place) -> Iterator[QueryServerRow]:
    with server(place) as (row, _):
        yield row


@pytest.fixture
def elsewhere(place, tmp_path) -> Elsewhere:
    return Elsewhere(tmp_path, place)


@pytest.fixture(params=["on this host", "elsewhere"])
def reader(request, place) -> StateReader:
    if request.param == "on this host":
        return StateReader(place.folder, place.application)
    elsewhere = request.getfixturevalue("elsewhere")
    elsewhere.tell(request.getfixturevalue("served"))
    return elsewhere.reader()


def test_every_kind_of_query_answers_what_a_plain_model_says(reader):
    sales, amounts = defaultdict(list), Counter(each.amount for each in sold())
    for each in sold():
        sales[each.shop].append(each)
    totals = [(shop, sum(each.amount for each in sales[shop]), len(sales[shop])) for shop in sorted(sales)]
    columns = ("shop", "total", "sales")
    answer = reader.range("sums")
    assert answer.rows.select(columns).rows() == totals
    assert answer.position == EVERYTHING
    first, second, third = sorted(sales)[:3]
    assert reader.range("sums", first, second).rows.select(columns).rows() == totals[:2]
    assert reader.range("sums", third).rows.select(columns).rows() == totals[2:]
    assert reader.prefix("sums", third).rows.select(columns).rows() == totals[2:3]
    for wanted in totals:
        assert reader.get("sums", wanted[0]).rows.select(columns).rows() == [wanted]
    assert reader.get("sums", "shop-x").rows.is_empty()
    assert dict(reader.range("by_amount").rows.select("amount", "sales").rows()) == amounts
    assert reader.get("by_amount", 3).rows["sales"].to_list() == [amounts[3]]

    windows = Counter((each.shop, (each.at - NINE) // (10 * MINUTE)) for each in sold())
    last = max(number for _, number in windows)  # the others have closed where stream time has passed their end
    found = reader.windows("by_time", from_time=NINE + last * 10 * MINUTE).rows
    assert dict(zip(found["shop"], found["count"], strict=True)) == {
        shop: count for (shop, number), count in windows.items() if number == last
    }
    shop = found["shop"][0]
    of_one = reader.windows("by_time", shop, NINE + last * 10 * MINUTE, NINE + last * 10 * MINUTE).rows
    assert of_one["count"].to_list() == [windows[shop, last]]
    hopping = open_hops()
    found = reader.windows("lately").rows
    columns = ["shop", "window_start", "window_end", "mean", "sales"]
    assert sorted(found.select(columns).rows()) == hopping
    for start in {row[1] for row in hopping}:
        of_some = reader.windows("lately", None, start, start + MINUTE).rows
        assert sorted(of_some.select(columns).rows()) == [row for row in hopping if start <= row[1] <= start + MINUTE]
        of_one = reader.windows("lately", shop, start).rows
        assert of_one.select(columns).rows() == [row for row in hopping if row[0] == shop and row[1] >= start]
    (visit,) = reader.sessions("visits", shop, sales[shop][-1].at, sales[shop][-1].at).rows.to_dicts()
    assert visit["count"] == sum(each.at >= visit["window_start"] for each in sales[shop])
    assert visit["window_end"] == sales[shop][-1].at
    assert reader.get("amounts_of", shop).rows["value"].to_list() == [each.amount for each in sales[shop]]
    assert reader.get("prices", "tea").rows["cents"].to_list() == [350]
    assert reader.get("prices", "tea", as_of=NINE + MINUTE).rows["cents"].to_list() == [300]
    assert reader.prefix("things", "la").rows["name"].to_list() == ["lamp", "lantern"]


def open_hops() -> list[tuple]:
    """The open hopping windows of each shop by a plain model: their bounds, and the mean and the number of its sales in
    them. A partition's newest sale closes those of its shops."""
    reached, amounts = dict[int, datetime](), defaultdict[tuple, list[int]](list)
    for each in sold():
        reached[market.partition_of(each.shop)] = each.at
        start = each.at - (each.at - EPOCH) % (4 * MINUTE)
        while start + 10 * MINUTE > each.at:
            amounts[each.shop, start, start + 10 * MINUTE].append(each.amount)
            start -= 4 * MINUTE
    return sorted(
        (*window, sum(found) / len(found), len(found))
        for window, found in amounts.items()
        if window[2] > reached[market.partition_of(window[0])]
    )


def test_answers_from_elsewhere_are_those_of_the_disk_to_the_type(place, served, elsewhere):
    elsewhere.tell(served)
    here, there = StateReader(place.folder, place.application), elsewhere.reader()
    for isolation in IsolationLevel:
        query = Query(isolation=isolation)
        for ask in (
            lambda reader, query: reader.range("things", query=query),
            lambda reader, query: reader.get("things", "lamp", query=query),
            lambda reader, query: reader.prefix("things", ("lan",), query=query),
            lambda reader, query: reader.range("sums", query=query),
            lambda reader, query: reader.range("by_amount", 2, 5, query=query),
            lambda reader, query: reader.range("amounts_of", query=query),
            lambda reader, query: reader.windows("by_time", query=query),
            lambda reader, query: reader.windows("by_time", "shop-1", query=query),
            lambda reader, query: reader.windows("lately", "shop-1", query=query),
            lambda reader, query: reader.sessions("visits", "shop-1", query=query),
            lambda reader, query: reader.get("prices", "tea", query=query),
            lambda reader, query: reader.get("sums", "nobody", query=query),
            lambda reader, query: reader.range("towns", query=query),
            lambda reader, query: reader.get("towns", "shop-0", query=query),
        ):
            wanted, found = ask(here, query), ask(there, query)
            assert found.rows.equals(wanted.rows)
            assert found.rows.schema == wanted.rows.schema
            assert found.position == wanted.position
    assert there.committed_position("towns") == here.committed_position("towns") == TOLD
    for store in ("sums", "by_amount", "things"):
        assert there.committed_position(store) == here.committed_position(store)
        assert there.tasks(store) == here.tasks(store)
        assert there.kind(store) is here.kind(store)
    assert there.task_of("sums", "shop-1") == here.task_of("sums", "shop-1")


def test_positions_bound_an_answer_wherever_it_comes_from_and_behind_a_repartition_too(reader):
    """Whoever knows the offset of its own record finds it counted in a store derived from it."""
    for store in ("sums", "by_amount"):
        assert reader.range(store, query=Query(at_least=EVERYTHING)).position == EVERYTHING
        assert sum(reader.range(store, query=Query(at_least=EVERYTHING)).rows["sales"]) == RECORDS
        reached = EVERYTHING["sales"][0]
        with pytest.raises(QueryError, match=f"sales-0 is at {reached}, not {reached + 1}; wait longer"):
            reader.range(store, query=Query(at_least={"sales": {0: reached + 1}}))
    with pytest.raises(QueryError, match="do not read all the requested partitions of sales"):
        reader.range("sums", query=Query(at_least={"sales": {PARTITIONS: 1}}))
    with pytest.raises(QueryError, match=r"or with IsolationLevel\.READ_COMMITTED"):
        reader.range("by_amount", query=Query(at_least=EVERYTHING, isolation=IsolationLevel.READ_UNCOMMITTED))
    with pytest.raises(QueryError, match="'sums' is a key-value store"):
        reader.windows("sums", "shop-1")


def test_a_global_table_answers_what_a_plain_model_says(reader):
    towns = dict(market.moved())
    wanted = sorted((shop, town) for shop, town in towns.items() if town is not None)
    answer = reader.range("towns")
    assert answer.rows.select("shop", "town").rows() == wanted
    assert answer.position == TOLD
    assert reader.range("towns", "shop-2", "shop-4").rows["shop"].to_list() == ["shop-2", "shop-3", "shop-4"]
    assert reader.prefix("towns", "shop-3").rows["shop"].to_list() == ["shop-3"]
    assert reader.get("towns", "shop-0").rows["town"].to_list() == [towns["shop-0"]]
    assert reader.get("towns", "shop-1").rows.is_empty()
    assert reader.committed_offset("towns", "towns", 0) == TOLD["towns"][0]
    for isolation in IsolationLevel:
        assert reader.get("towns", "shop-0", query=Query(at_least=TOLD, isolation=isolation)).position == TOLD
    end = TOLD["towns"][1]
    with pytest.raises(QueryError, match=f"^global table towns has not .*: towns-1 is at {end}, not {end + 1}; wait"):
        reader.get("towns", "shop-0", query=Query(at_least={"towns": {1: end + 1}}))
    with pytest.raises(QueryError, match="do not read all the requested partitions of sales"):
        reader.get("towns", "shop-0", query=Query(at_least=EVERYTHING))
    for ask in (lambda: reader.tasks("towns"), lambda: reader.task_of("towns", "shop-0")):
        with pytest.raises(QueryError, match="'towns' is a global table: no task holds it"):
            ask()


def test_of_the_copies_of_a_global_table_the_one_that_is_furthest_answers(tmp_path, place, served):
    """Also where the executor with the newest rows is not the first one; and one that cannot be asked is left out."""
    longer = run(tmp_path / "market")
    longer.topics.rows["towns", 0].append((b"shop-1", b"town-7", 0))
    longer.topics.rows["sales", 0] += longer.topics.rows["sales", 0][:1]
    longer.run()
    elsewhere = Elsewhere(tmp_path / "elsewhere", place)
    reader = elsewhere.reader()
    beyond = {"towns": {**TOLD["towns"], 0: TOLD["towns"][0] + 1}}
    with server(longer) as (row, process):
        further = replace(row, executor="2")
        for servers in ((served, further), (further, served)):
            elsewhere.tell(*servers)
            answer = reader.range("towns", query=Query(at_least=beyond))
            assert answer.position == beyond
            assert "shop-1" in answer.rows["shop"]
        process.kill()
        process.wait()
        assert reader.range("towns").position == TOLD
        elsewhere.tell(further)
        with pytest.raises(QueryError, match=r"^nobody answers for global table towns: executor 2 .* does not answer"):
            reader.range("towns")
    assert StateReader(longer.folder, longer.application).range("towns").position == beyond


def test_a_global_table_that_nobody_has_loaded_yet_is_said_to_be_unreadable(tmp_path, place):
    shutil.copytree(place.state_folder, tmp_path / "state" / "market")
    shutil.rmtree(tmp_path / "state" / "market" / "_global_tables")
    here = StateReader(tmp_path, place.application, warehouse=place.warehouse)
    with pytest.raises(QueryError, match="no state in"):
        here.get("towns", "shop-0")
    (tmp_path / "state" / "market" / "_global_tables" / "towns").mkdir(parents=True)
    with pytest.raises(QueryError, match="global table towns: it has no readable state at the moment; try again in a"):
        here.get("towns", "shop-0")


def test_nobody_is_answered_who_does_not_have_the_token(place, served):
    question = Question(look="range", store="sums", isolation=IsolationLevel.READ_COMMITTED)
    task = f"{place.application.topology.sub_topologies[0].stored_name}_0"
    right = RemoteStores("1", served.host, served.port, TOKEN)
    assert right.answer(question, [task])[0].rows is not None
    with pytest.raises(AwayError, match="another token"):
        RemoteStores("1", served.host, served.port, "another").answer(question, [task])
    client = flight.FlightClient(f"grpc://{served.host}:{served.port}")
    for call in (
        lambda: client.do_get(flight.Ticket(b"")).read_all(),
        lambda: list(client.do_action(flight.Action("end", b""))),
        lambda: list(client.list_flights()),
    ):
        with pytest.raises(flight.FlightUnauthenticatedError):
            call()
    RemoteStores("1", served.host, served.port, "another").end()
    assert right.answer(question, [task])[0].rows is not None, "it goes on"
    assert TOKEN not in repr(served)


def test_who_has_taken_the_port_of_a_server_learns_nothing_and_is_not_believed(place):
    """One that cannot prove that it has the token is refused before anything of it is sent."""
    heard = []

    class Impostor(flight.ServerAuthHandler):
        def authenticate(self, outgoing, incoming):
            heard.append(incoming.read())
            outgoing.write(bytes(64))
            heard.append(incoming.read())

        def is_valid(self, token):
            heard.append(token)
            return b""

    with flight.FlightServerBase("grpc://127.0.0.1:0", auth_handler=Impostor()) as impostor:
        question = Question(look="range", store="sums", isolation=IsolationLevel.READ_COMMITTED)
        with pytest.raises(AwayError, match="another token"):
            RemoteStores("1", "127.0.0.1", impostor.port, TOKEN).answer(question, ["sales_0"])
    assert len(heard[0]) == 32
    assert not any(heard[1:])


def test_one_that_hangs_is_not_waited_for_without_an_end(monkeypatch):
    monkeypatch.setattr(remote, "LOGIN_LIMIT_S", 0.3)
    question = Question(look="range", store="sums", isolation=IsolationLevel.READ_COMMITTED)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started_s = time.monotonic()
        with pytest.raises(AwayError, match="has not answered in time"):
            RemoteStores("1", "127.0.0.1", silent.getsockname()[1], TOKEN).answer(question, ["sales_0"])
    assert time.monotonic() - started_s < 10


def test_an_executor_that_is_gone_is_named_with_the_way_out_within_the_time(place, served, elsewhere):
    with command_lines() as lines, server(place) as (gone, process):
        elsewhere.tell(gone)
        reader = elsewhere.reader()
        assert reader.range("sums").rows.height == market.SHOPS - 3
        process.kill()
        process.wait()
    started_s = time.monotonic()
    with pytest.raises(QueryError, match=rf"executor 1 at 127\.0\.0\.1:{gone.port} does not answer; try again in a mo"):
        reader.range("sums", query=Query(timeout=timedelta(seconds=0.5)))
    assert time.monotonic() - started_s < 10
    assert all(TOKEN not in line for line in lines)
    elsewhere.tell(served)  # the tasks have been restored elsewhere
    assert reader.range("sums").position == EVERYTHING


def test_a_task_that_is_being_restored_is_waited_for(served, elsewhere):
    elsewhere.tell(served, status="restoring")
    reader = elsewhere.reader()
    with pytest.raises(QueryError, match=r"sales_0 .*: it is restoring; try again in a moment$"):
        reader.get("sums", "shop-1")
    elsewhere.tell(served, executor="2")
    with pytest.raises(QueryError, match="it is on executor 2, which answers no queries yet; try again"):
        reader.get("sums", "shop-1")
    elsewhere.tell(served)
    assert reader.get("sums", "shop-1", query=SOON).rows.height == 1


def test_a_control_database_that_does_not_answer_is_named(place, served, elsewhere):
    elsewhere.tell(served)
    file = elsewhere.folder / "control.sqlite"
    reader = elsewhere.reader(control_url=f"sqlite:///{file}")
    moved = elsewhere.folder.rename(elsewhere.folder.with_name("moved"))
    elsewhere.folder.write_text("no folder")
    with pytest.raises(QueryError, match=r"control database .*; try again once it answers"):
        reader.get("sums", "shop-1")
    elsewhere.folder.unlink()
    moved.rename(elsewhere.folder)
    assert reader.get("sums", "shop-1").rows.height == 1


def test_standbys_answer_with_their_position_where_that_is_allowed(tmp_path):
    """They are at the commit that they have followed to, whatever the task has read since."""
    place = run(tmp_path / "market")
    newest = newest_commit(place.warehouse, "market")
    for name in newest.tasks:
        follow_to(place, newest, name)
    before = {store: StateReader(place.folder, place.application).range(store) for store in ("sums", "by_amount")}
    place.topics.rows["sales", 0] += place.topics.rows["sales", 0][:5]
    place.run()
    elsewhere = Elsewhere(tmp_path / "elsewhere", place)
    reader = elsewhere.reader()
    with server(place) as (row, _):
        elsewhere.tell(row, executor="0", standbys={"1": 0.5})
        for store, wanted in before.items():
            with pytest.raises(
                QueryError, match="which answers no queries yet; try again in a moment, or take what sta"
            ):
                reader.range(store)
            stale = reader.range(store, query=Query(allow_stale=True))
            assert stale.rows.equals(wanted.rows)
            assert stale.position == wanted.position == EVERYTHING
        assert "shop-1" in asked(elsewhere, "shop-1", "--allow-stale").output
        beyond = {"sales": {0: EVERYTHING["sales"][0] + 5}}
        with pytest.raises(QueryError, match="not reached the requested position"):
            reader.range("sums", query=Query(allow_stale=True, at_least=beyond))
        elsewhere.tell(row, standbys={"1": 0.5})
        answer = reader.range("sums", query=Query(allow_stale=True, at_least=beyond))
        assert answer.position == beyond | {"sales": {**EVERYTHING["sales"], **beyond["sales"]}}


def test_tasks_on_this_host_are_read_from_disk(place, served, tmp_path):
    """Beside an executor nobody is asked: its server has ended here, and the control database still knows of it."""
    beside = Elsewhere(place.folder, place)
    try:
        beside.tell(replace(served, port=1))
        assert beside.reader().range("sums").position == EVERYTHING
        beside.tell(replace(served, port=1, machine="another"))
        with pytest.raises(QueryError, match=r"127\.0\.0\.1:1 does not answer"):
            beside.reader().range("sums")
    finally:
        beside.database.forget("market")
    assert beside.reader().range("sums").position == EVERYTHING


def test_nothing_is_loaded_for_a_cluster_where_there_is_none(place):
    code = (
        "import sys; from weir import StateReader; from tests.pipelines.queries.market import app\n"
        f"print(StateReader({str(place.folder)!r}, app).range('sums').rows.height)\n"
        "print(*{'sqlalchemy', 'pyarrow'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(market.SHOPS - 3)]


def test_the_command_line_asks_executors_as_well(served, elsewhere):
    elsewhere.tell(served)
    assert "shop-1" in asked(elsewhere, "shop-1").stdout
    assert "town-9" in asked(elsewhere, "shop-0", store="towns").stdout
    assert "is a global table" in asked(elsewhere, "--tasks", store="towns").output
    elsewhere.tell(served, executor="2", standbys={"1": 0.1})
    assert "by --allow-stale, in Python" in " ".join(asked(elsewhere, "shop-1", "--timeout", "0").output.split())


def asked(elsewhere: Elsewhere, *options: str, store: str = "sums") -> Result:
    """What ``weir query`` says of a store."""
    settings = Settings(dir=elsewhere.folder)
    register(settings, "market", "tests.pipelines.queries.market:app")
    flags = ["--dir", str(settings.dir), "--set", f"warehouse={elsewhere.place.warehouse}"]
    return CliRunner().invoke(weir, ["query", "market", store, *options, *flags])
