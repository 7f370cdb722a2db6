"""``weir sql`` with real Spark: what it answers equals plain dictionaries of the rows that were written."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import random
import re
import selectors
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import polars as pl
import psutil
import pytest
from typer.testing import CliRunner

from tests.waiting import wait_for
from weir.infra.settings import Settings
from weir.pipelines.cli import progress
from weir.pipelines.cli.app import app
from weir.pipelines.operations import sql as operation
from weir.pipelines.spark.sql import SqlSession, views
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.state.changelog.rows import changelog_spec
from weir.state.changelog.upserts import Upserts
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import AppendTable, read_table
from weir.state.types import FileEntry, StoreSpec, TableSpec

pytestmark = pytest.mark.spark
TIME = pl.Datetime("ms", "UTC")
OF_COMMITS = {"_ts": TIME, "_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}
FACTS = TableSpec(name="late.trips", schema=pl.Schema({"n": pl.Int64(), **OF_COMMITS}))
AIRPORTS = TableSpec(
    name="airports", keys=("code",), schema=pl.Schema({"code": pl.String(), "flights": pl.Int64(), **OF_COMMITS})
)
SHOWN = TableSpec(name="_updates/carriers", keys=AIRPORTS.keys, schema=AIRPORTS.schema)
STORE = StoreSpec(name="by-code", key=pl.Schema({"code": pl.String()}), value=pl.Schema({"flights": pl.Int64()}))
CHANGES = changelog_spec(STORE)
LIMIT_S = 120
MONTH_MS = 30 * 86_400_000
TASKS = ("0_0", "0_1")


class Airports:
    """Random commits of the application ``air``, and what they say by plain dictionaries."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings.load(folder)
        specs = [FACTS, AIRPORTS, SHOWN, CHANGES, DEAD_LETTERS]
        self.driver = Committer(self.settings.warehouse, "air", specs, fingerprint="f")
        self.driver.claim()
        self.upserts = Upserts(self.folder, SHOWN, "air")
        self.random, self.epoch = random.Random(1), 0
        self.facts: list[int] = []
        self.airports: dict[str, int | None] = {}
        self.states: dict[tuple[str, str], int | None] = {}
        self.updates = 0

    @property
    def folder(self) -> Path:
        return self.settings.warehouse / "air"

    def written(self) -> CommitRecord:
        """The files of the next commit."""
        self.epoch += 1
        files: list[FileEntry] = []
        facts = [self.random.randrange(9) for _ in range(3)]
        self.facts += facts
        files.append(self._file(FACTS, {"n": facts}, [False] * 3))
        codes = [self.random.choice("ABCDEF") for _ in range(8)]
        flights = [self.random.randrange(99) for _ in codes]
        deleted = [self.random.random() < 0.3 for _ in codes]
        self.updates += len(codes)
        self.airports |= {
            code: None if gone else number for code, number, gone in zip(codes, flights, deleted, strict=True)
        }
        columns = {"code": codes, "flights": flights}
        files += [self._file(AIRPORTS, columns, deleted), self._file(SHOWN, columns, deleted)]
        for task in TASKS:
            keys = self.random.sample("ABCDEF", 3)
            values = [self.random.randrange(99) for _ in keys]
            gone = [self.random.random() < 0.3 for _ in keys]
            self.states |= {
                (task, key): None if is_gone else value for key, value, is_gone in zip(keys, values, gone, strict=True)
            }
            partition = {"task": task, "segment": "0"}
            files.append(self._file(CHANGES, {"code": keys, "flights": values}, gone, partition))
        return CommitRecord(kind="commit", generation=1, epoch=self.epoch, at_ms=0, fingerprint="f", files=tuple(files))

    def commit(self) -> None:
        self.driver.commit(self.written())

    def _file(
        self, spec: TableSpec, columns: dict[str, list], deleted: list[bool], partition: dict[str, str] | None = None
    ) -> FileEntry:
        rows = pl.DataFrame(columns).with_columns(
            _ts=pl.lit(self.epoch).cast(TIME),
            _epoch=pl.lit(self.epoch, pl.Int64()),
            _seq=pl.int_range(pl.len(), dtype=pl.Int64()),
            _deleted=pl.Series(deleted, dtype=pl.Boolean),
        )
        return write_file(self.folder, spec, rows, partition)


def standing(values: dict) -> dict:
    return {key: value for key, value in values.items() if value is not None}


@pytest.fixture
def air(tmp_path, monkeypatch, session) -> Iterator[Airports]:
    """The commands use the one session of this file."""
    monkeypatch.setattr(operation, "sql_session", lambda settings: session)
    monkeypatch.setattr(operation, "stop_session", lambda session: None)
    air = Airports(tmp_path)
    for _ in range(4):
        air.commit()
    air.upserts.refresh()
    yield air
    air.driver.close()


@pytest.fixture
def ask(air, session) -> SqlSession:
    with operation.opened_sql(air.settings, "air") as asked:
        return asked


def weir(air: Airports, *arguments: str, text: str | None = None):
    return CliRunner().invoke(app, ["sql", "air", *arguments, "--dir", str(air.settings.dir)], input=text)


def counted(air: Airports, ask: SqlSession) -> None:
    """Check every view against the dictionaries."""
    for table in ("airports", "carriers"):
        assert dict(ask.run(f"SELECT code, flights FROM {table}").iter_rows()) == standing(air.airports), table
        assert ask.run(f"SELECT count(*) FROM updates.{table}").item() == air.updates
    assert sorted(ask.run("SELECT n FROM late_trips")["n"]) == sorted(air.facts)
    held = ask.run("SELECT task, code, flights FROM store.by_code")
    assert {(task, code): flights for task, code, flights in held.iter_rows()} == standing(air.states)
    assert ask.run("SELECT count(*) FROM changelog.by_code").item() == air.epoch * 6


def test_each_view_says_what_was_written_and_a_statement_sees_the_newest_commit(air, ask):
    counted(air, ask)
    found, wanted = ask.run("SELECT * FROM airports"), read_table(air.folder / "airports")
    assert found.columns == wanted.columns
    assert found.sort("code").rows() == wanted.sort("code").rows()
    shown = read_table(air.folder / "carriers").columns
    air.commit()  # the table of upserts trails now
    counted(air, ask)
    assert ask.run("SELECT * FROM carriers").columns == shown
    air.upserts.refresh()
    counted(air, ask)


def test_a_commit_that_only_some_tables_have_is_not_seen(air, ask):
    """A driver that dies after the pivot: one table has its commit, and no other."""
    before = ask.run("SELECT code, flights FROM airports ORDER BY code").rows()
    facts = ask.run("SELECT count(*) FROM late_trips").item()

    def die(step: str) -> None:
        if step == "pivot appended":
            raise KeyboardInterrupt

    air.driver._on_step = die
    record = air.written()
    with pytest.raises(KeyboardInterrupt):
        air.driver.commit(record)
    AppendTable(air.folder / FACTS.name, FACTS.name, "air").append(record.state_id.version, [record.files[0]])
    joined = "SELECT (SELECT count(*) FROM late_trips), count(*) FROM updates.airports"
    assert ask.run(joined).row(0) == (facts, 8 * 4)
    assert ask.run("SELECT code, flights FROM airports ORDER BY code").rows() == before
    air.driver._on_step = lambda step: None
    air.driver.close()
    air.driver = Committer(
        air.settings.warehouse, "air", [FACTS, AIRPORTS, SHOWN, CHANGES, DEAD_LETTERS], fingerprint="f"
    )
    air.driver.claim()  # which appends the rest
    counted(air, ask)


def test_tables_that_nobody_has_written_to_for_a_month_are_read(air, ask):
    """By their versions, which are older than files that were removed are kept."""
    for entry in air.folder.glob("**/_delta_log/*.json"):
        text = re.sub(r'("timestamp":)(\d+)', lambda found: f"{found[1]}{int(found[2]) - MONTH_MS}", entry.read_text())
        entry.write_text(text)
        then_s = entry.stat().st_mtime - MONTH_MS / 1000
        os.utime(entry, (then_s, then_s))
    counted(air, ask)


def test_show_tables_lists_what_there_is_and_spark_knows_it_too(air, ask):
    names = [
        "airports",
        "carriers",
        "late_trips",
        "_dead_letters",
        "updates.airports",
        "updates.carriers",
        "changelog.by_code",
        "store.by_code",
    ]
    assert sorted(ask.run("show tables")["table"]) == sorted(names)
    assert set(ask.run("SHOW TABLES IN updates")["tableName"]) == {"airports", "carriers"}
    assert ask.run("DESCRIBE store.by_code")["col_name"].to_list() == ["task", "code", "flights", "_ts", "_epoch"]


def test_names_that_are_the_same_in_sql_get_numbers(tmp_path):
    for name in ("a.b", "a-b", "A_b"):
        AppendTable.create(tmp_path, TableSpec(name=name, schema=FACTS.schema), "air")
    assert [(view.name, view.table) for view in views(tmp_path, ["a.b", "a-b", "A_b"])] == [
        ("a_b", "a.b"),
        ("a_b_2", "a-b"),
        ("A_b_3", "A_b"),
    ]


def test_rows_are_printed_as_a_table_as_json_and_as_csv(air):
    query = "SELECT code, flights, array(flights) AS list, CAST(NULL AS INT) AS none FROM airports ORDER BY code"
    wanted = sorted(standing(air.airports).items())
    lines = weir(air, query).stdout.splitlines()
    assert lines[0].split() == ["code", "flights", "list", "none"]
    assert [line.split() for line in lines[1:]] == [[code, str(n), f"[{n}]", "-"] for code, n in wanted]
    assert json.loads(weir(air, query, "--format", "json").stdout) == [
        {"code": code, "flights": n, "list": [n], "none": None} for code, n in wanted
    ]
    assert list(csv.DictReader(io.StringIO(weir(air, query, "--format", "csv").stdout))) == [
        {"code": code, "flights": str(n), "list": f"[{n}]", "none": ""} for code, n in wanted
    ]


def test_of_many_rows_the_first_are_printed_and_the_way_to_all_of_them_is_named(air):
    cut = weir(air, "SELECT id FROM range(1500)")
    assert len(cut.stdout.splitlines()) == 1 + 1000
    assert "the first 1,000 rows; --limit 0 prints all" in " ".join(cut.stderr.split())
    assert len(weir(air, "SELECT id FROM range(1500)", "--limit", "0").stdout.splitlines()) == 1 + 1500
    assert len(weir(air, "SELECT id FROM range(1500)", "--format", "csv").stdout.splitlines()) == 1 + 1500


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("SELECT\n count(*) FROM\n airport", "line 3: air has no table 'airport'; did you mean airports?"),
        (
            "SELECT * FROM changelog.nothing_like_it",
            "line 1: air has no table 'changelog.nothing_like_it'; it has airports, ",
        ),
        ("SELECT *\nFORM airports", "line 2: Syntax error at or near 'airports'"),
        (
            "SELECT code,\n fligths FROM airports",
            "line 2: A column, variable, or function parameter with name `fligths`",
        ),
        ("SELECT 1,\n 2 / 0", "line 2: Division by zero. Use `try_divide`"),
        ("SELECT CAST(code AS INT) FROM airports", "line 1: The value '"),
        ("SELECT raise_error('no such airport')", "no such airport"),
    ],
)
def test_an_error_is_one_sentence_with_its_line(air, statement, sentence):
    result = weir(air, statement)
    said = " ".join(result.stderr.split())
    assert result.exit_code == 1
    assert f"weir: {sentence}" in said, said
    assert not re.search(r"\bat org\.|Traceback|SQLSTATE|Py4J|'Project|\[[A-Z]+_[A-Z_]+\]", result.output)


def test_statements_are_piped_in_and_the_first_that_fails_ends_them(air):
    result = weir(
        air, "--format", "csv", text="-- two;\nSELECT 1 AS a;\n\nSELECT 2 AS a, 3 AS a;\nSELECT\n nope;\nSELECT 4"
    )
    assert (result.exit_code, result.stdout) == (1, "a\n1\na,a_2\n2,3\n")
    assert "weir: line 6: A column, variable, or function parameter with name `nope`" in " ".join(result.stderr.split())


def test_what_it_waits_for_is_said_on_stderr(air, session, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.05)
    monkeypatch.setattr(operation, "sql_session", lambda settings: time.sleep(0.3) or session)
    result = weir(
        air, "--format", "csv", text="SELECT 1 AS a;\nSELECT count(*) AS n FROM range(1000000000) WHERE id < 0"
    )
    assert result.stdout == "a\n1\nn\n0\n"
    for said in ("air: starting Spark, 0 s\n", "air: running the statement of line 2, "):
        assert said in result.stderr, result.stderr


def test_before_the_first_commit_there_is_nothing_to_ask(tmp_path, monkeypatch, session):
    monkeypatch.setattr(operation, "sql_session", lambda settings: session)
    monkeypatch.setattr(operation, "stop_session", lambda session: None)
    air = Airports(tmp_path)
    refused = weir(air, "SELECT count(*) AS n FROM late_trips")
    assert refused.exit_code == 1
    assert "air has committed nothing yet; run it first with `weir run MODULE:APP" in " ".join(refused.stderr.split())
    air.commit()
    assert weir(air, "SELECT count(*) AS n FROM late_trips").stdout.split() == ["n", "3"]
    air.driver.close()


def test_what_is_refused_before_spark_starts_names_the_way_out(air, tmp_path, monkeypatch):
    def started(settings: Settings) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(operation, "sql_session", started)
    result = CliRunner().invoke(app, ["sql", "aid", "SELECT 1", "--dir", str(tmp_path)])
    assert "no application 'aid'" in result.stderr
    assert "did you mean 'air'?" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_the_prompt_takes_statements_over_lines_and_ends_when_java_does(air):
    """A real process on a terminal, whose Java is killed between two statements."""
    with Prompt(air) as terminal:
        terminal.until("sql> ")
        terminal.type("SELECT code, flights FROM airports ORDER BY code;\n")
        for code, flights in sorted(standing(air.airports).items()):
            terminal.until(rf"{code} +{flights}\b")
        terminal.until("sql> ")
        terminal.type("SELECT code\n")
        terminal.until("   > ")
        terminal.type("  FROM nope;\n")
        terminal.until("line 2: air has no table 'nope'")
        terminal.until("sql> ")
        terminal.type("SELECT count(*) FROM range(1000000000000) WHERE id % 7 = 8;\n")
        wait_for(terminal.is_at_work, "Spark runs the query")
        terminal.press_until("\x03", "cancelled")
        terminal.until("sql> ")
        air.commit()
        terminal.type("SELECT concat('n=', count(*)) AS n FROM updates.airports;\n")
        terminal.until(f"n={air.updates}")
        terminal.until("sql> ")
        (java,) = terminal.java()
        java.kill()
        wait_for(lambda: java.status() == psutil.STATUS_ZOMBIE, "Java has ended", every_s=0.05)
        terminal.type("SELECT 1;\n")
        terminal.until("Java process has ended.*--set spark.driver.memory=4g")
        assert terminal.exit_code() == 1
    history = air.settings.dir / "spark" / "sql_history"
    assert "SELECT code, flights FROM airports ORDER BY code;" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o077 == 0
    with Prompt(air, "--set", "spark.driver.memory=4g") as terminal:
        terminal.until("sql> ")
        terminal.type("SELECT concat('n=', count(*)) AS n FROM updates.airports;\n")
        terminal.until(f"n={air.updates}")
        terminal.until("sql> ")
        terminal.type("\\q\n")
        assert terminal.exit_code() == 0


class Prompt:
    """``weir sql`` on a terminal of its own."""

    def __init__(self, air: Airports, *options: str) -> None:
        code = "from weir.pipelines.cli import main; main()"
        command = [sys.executable, "-c", code, "sql", "air", "--dir", str(air.settings.dir), *options]
        self.pid, self.place = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # as on a terminal, also where tests run in the background
            os.execve(command[0], command, {**os.environ, "TERM": "dumb", "COLUMNS": "200"})
        self.seen, self.is_over = "", False

    def __enter__(self) -> Prompt:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_over:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.place)

    def type(self, text: str) -> None:
        os.write(self.place, text.encode())

    def until(self, wanted: str) -> None:
        """Read until it has been printed, after what was read before."""
        while (found := re.search(wanted, self.seen)) is None:
            assert self.has_printed(LIMIT_S), f"{wanted!r} is missing in {self.seen!r}"
            try:
                self.seen += os.read(self.place, 65_536).decode(errors="replace")
            except OSError:
                pytest.fail(f"it has ended without {wanted!r}: {self.seen!r}")
        self.seen = self.seen[found.end() :]

    def press_until(self, key: str, wanted: str) -> None:
        """Press a key, and again as somebody would who sees nothing happen."""
        for _ in range(4):
            self.type(key)
            if self.is_printed(wanted, 15):
                break
        self.until(wanted)

    def is_printed(self, wanted: str, limit_s: float) -> bool:
        until_s = time.monotonic() + limit_s
        while wanted not in self.seen and (left_s := until_s - time.monotonic()) > 0:
            if self.has_printed(left_s):
                self.seen += os.read(self.place, 65_536).decode(errors="replace")
        return wanted in self.seen

    def has_printed(self, limit_s: float) -> bool:
        with selectors.DefaultSelector() as selector:  # select.select takes no descriptor above 1,023
            selector.register(self.place, selectors.EVENT_READ)
            return bool(selector.select(limit_s))

    def java(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.pid).children() if child.name() == "java"]

    def is_at_work(self) -> bool:
        """Whether Java computes, as it does for nothing but a query."""
        (java,) = self.java()
        return java.cpu_percent(0.2) > 20

    def exit_code(self) -> int:
        with suppress(OSError):
            while os.read(self.place, 65_536):
                pass
        self.is_over = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
