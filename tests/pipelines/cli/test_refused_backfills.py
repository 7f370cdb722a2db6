"""A backfill that is refused: each way out that the message names is typed, and afterwards the outputs hold what a
plain list of the records says."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from tests.pipelines.backfill.inline import copy
from tests.pipelines.cli.daily import FIFTH, HOUR_MS, HOURS, ROWS, SECOND, SWAP, THIRD, daily, of, refused, succeeded
from tests.pipelines.cli.typed import BROKERS, OTHER_BROKERS, Terminal, opened
from tests.pipelines.spark.evolving import Click
from tests.pipelines.spark.inline import Topics
from weir import Application, Json, StreamsBuilder, String
from weir.pipelines.operations import backfill
from weir.pipelines.spark.publishing import Publishers
from weir.state.commit.outbox import Mark, Outbox
from weir.state.commit.tables import read_table


def facts(terminal: Terminal, application: str = "clicks") -> list[int]:
    return sorted(read_table(terminal.warehouse / application / "facts")["ms"])


def halves(terminal: Terminal) -> dict:
    rows = read_table(terminal.warehouse / "clicks" / "halves").select("user", "window_start", "n")
    return {(user, start.timestamp() // (12 * 3_600)): n for user, start, n in rows.iter_rows()}


def assert_holds(terminal: Terminal, *days: int) -> None:
    numbers = of(*days)
    assert facts(terminal) == numbers
    assert halves(terminal) == Counter((f"user-{number % 4}", number // 12) for number in numbers)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A folder in which the program that was not fixed has read all records."""
    with pytest.MonkeyPatch.context() as patch:
        there = opened(tmp_path_factory.mktemp("template"), patch)
        there.clusters[BROKERS] = Topics({("clicks", 0): list(ROWS)}, ids={"clicks": "first"})
        done = there.run(there.has("app", daily(is_fixed=False)))
        assert done.code == 0, done.text
    return there.folder


@pytest.fixture
def fixed(terminal, template) -> Terminal:
    """Where the fixed program is deployed and has not run."""
    copy(template, terminal.folder)
    terminal.clusters[BROKERS] = Topics({("clicks", 0): list(ROWS)}, ids={"clicks": "first"})
    terminal.has("app", daily())
    return terminal


def expire(terminal: Terminal, offset: int) -> None:
    """Records before the offset are gone, and whoever reads them fails."""
    terminal.topics.rows["clicks", 0][:offset] = [(b"gone", b"gone", 0)] * offset
    terminal.topics.oldest["clicks", 0] = offset


def test_days_whose_margin_has_expired_are_computed_with_a_smaller_one_or_later_ones(fixed):
    expire(fixed, 18)
    found = refused(fixed.weir(f"backfill run clicks {SECOND}"), "choose later days, or a smaller margin")
    succeeded(fixed.weir(f"backfill run clicks {THIRD}", *SWAP))
    assert_holds(fixed, 2)
    first, end = SECOND.split()
    way_out = "backfill run clicks FIRST END --margin-hours 1"
    succeeded(fixed.take(way_out, found, *SWAP, FIRST=first, END=end))
    assert_holds(fixed, 1, 2)


def test_without_the_beginning_days_are_computed_or_another_id_runs_over_what_is_left(fixed):
    expire(fixed, 18)
    found = refused(fixed.weir("backfill run clicks --everything"), "backfill days that are still there")
    assert 'give the program another id, as in Application("other-id", ...), and run it over what is left' in found.text
    succeeded(fixed.weir(f"backfill run clicks {THIRD}", *SWAP))
    assert_holds(fixed, 2)
    succeeded(fixed.run(fixed.has("beside", daily(id="other-id"))))
    assert facts(fixed, "other-id") == list(range(18, HOURS))


def test_running_totals_are_computed_with_everything(terminal):
    terminal.clusters[BROKERS] = Topics({("clicks", 0): list(ROWS)})
    succeeded(terminal.run(terminal.has("app", daily(is_fixed=False, has_facts=False))))
    terminal.has("app", daily(has_facts=False))
    found = refused(terminal.weir(f"backfill run clicks {SECOND}"), "compute all of it with")
    succeeded(terminal.take("backfill run clicks --everything", found, *SWAP))
    totals = dict(read_table(terminal.warehouse / "clicks" / "users").select("user", "n").iter_rows())
    assert totals == dict.fromkeys([f"user-{number}" for number in range(4)], HOURS // 4)


@pytest.fixture
def archive(tmp_path_factory) -> Path:
    """The records in a file."""
    numbers = range(HOURS)
    frame = pl.DataFrame(
        {
            "user": [f"user-{number % 4}" for number in numbers],
            "page": [f"page-{number % 3}" for number in numbers],
            "ms": list(numbers),
            "_ts": pl.Series([number * HOUR_MS for number in numbers]).cast(pl.Datetime("ms", "UTC")),
        }
    )
    path = tmp_path_factory.mktemp("archive") / "clicks.parquet"
    frame.write_parquet(path)
    return path


def test_records_of_a_topic_made_anew_are_read_from_files_or_from_the_brokers_that_have_them(fixed, archive):
    fixed.clusters[OTHER_BROKERS] = fixed.topics
    fixed.clusters[BROKERS] = Topics({("clicks", 0): []}, ids={"clicks": "second"})
    found = refused(fixed.weir(f"backfill run clicks {SECOND}"), "was deleted and recreated")
    first, end = SECOND.split()
    way_out = "backfill run clicks FIRST END --from TOPIC=PATH"
    succeeded(fixed.take(way_out, found, *SWAP, FIRST=first, END=end, TOPIC="clicks", PATH=str(archive)))
    assert_holds(fixed, 1)
    assert "backfill run clicks FIRST END --bootstrap-servers HOST:PORT" in found.commands
    succeeded(fixed.weir(f"backfill run clicks {THIRD} --bootstrap-servers {OTHER_BROKERS}", *SWAP))
    assert_holds(fixed, 1, 2)


def test_days_with_open_windows_are_read_from_kafka_and_earlier_ones_from_files(fixed, archive):
    found = refused(fixed.weir(f"backfill run clicks {FIFTH} --from {archive}"), "may have windows of")
    assert "choose earlier days, or backfill from Kafka" in found.text
    succeeded(fixed.weir(f"backfill run clicks {SECOND} --from {archive}", *SWAP))
    assert_holds(fixed, 1)
    succeeded(fixed.weir(f"backfill run clicks {FIFTH}", *SWAP))
    assert_holds(fixed, 1, 4)


def test_files_with_the_columns_of_the_topic_and_a_time_are_read(fixed, archive):
    rows = pl.read_parquet(archive)
    rows.drop("page").write_parquet(archive.with_name("without.parquet"))
    text = "name a Delta table's folder, or Parquet files, with the columns of the topic's keys and values and a time"
    refused(fixed.weir(f"backfill run clicks {SECOND} --from {archive.with_name('without.parquet')}"), text)
    rows.rename({"_ts": "at"}).write_delta(archive.with_name("table"))
    refused(fixed.weir(f"backfill run clicks {SECOND} --from {archive.with_name('table')}"), "(--time-column)")
    succeeded(fixed.weir(f"backfill run clicks {SECOND} --from {archive.with_name('table')} --time-column at", *SWAP))
    assert_holds(fixed, 1)


def test_a_large_change_is_discarded_or_swapped_in_all_the_same(fixed):
    found = refused(fixed.weir(f"backfill run clicks {SECOND} --swap"), "was not swapped in")
    assert facts(fixed) == of()
    (discard,) = (each for each in found.commands if each.startswith("backfill discard"))
    succeeded(fixed.take(discard, found))
    assert "has no backfills" in succeeded(fixed.weir("backfill list clicks")).text
    found = refused(fixed.weir(f"backfill run clicks {SECOND} --swap"), "was not swapped in")
    (swap,) = (each for each in found.commands if each.startswith("backfill swap"))
    assert "(--max-change SHARE in place of --yes" in found.text
    refused(fixed.weir(swap.replace("--yes", "--max-change 0.1")), "was not swapped in")
    succeeded(fixed.weir(swap.replace("--yes", "--max-change 1")))
    assert_holds(fixed, 1)
    refused(fixed.weir(f"backfill discard clicks {swap.split()[3]}"), "was swapped in by the commit of epoch")
    found = refused(fixed.weir(f"backfill run clicks {THIRD} --swap"), "was not swapped in")
    (swap,) = (each for each in found.commands if each.startswith("backfill swap"))
    succeeded(fixed.take(swap, found))
    assert_holds(fixed, 1, 2)


def test_a_backfill_that_found_no_record_says_so(fixed):
    made = succeeded(fixed.weir("backfill run clicks 1971-01-01"))
    assert "0 records" in made.text
    assert "there was no record to read: once it is swapped in, the outputs hold nothing for 1971-01-01" in made.text
    assert "no record to read" not in succeeded(fixed.weir(f"backfill run clicks {SECOND}")).text


def test_an_unknown_backfill_is_found_in_the_list(fixed):
    made = succeeded(fixed.weir(f"backfill run clicks {SECOND}"))
    (swap,) = made.commands
    found = refused(fixed.weir("backfill swap clicks 19700102-19700103-000000"), "does not exist")
    assert swap.split()[-1] in succeeded(fixed.take("backfill list clicks", found)).text


def test_a_backfill_to_be_discarded_is_found_in_the_list(fixed):
    (swap,) = succeeded(fixed.weir(f"backfill run clicks {SECOND}")).commands
    made = swap.split()[-1]
    found = refused(fixed.weir("backfill discard clicks"), "name one backfill, or give --abandoned")
    assert made in succeeded(fixed.take("backfill list clicks", found)).text
    succeeded(fixed.weir(f"backfill discard clicks {made}"))
    assert "has no backfills" in succeeded(fixed.take("backfill list clicks", found)).text


def test_a_backfill_that_is_discarded_while_it_is_swapped_in_is_missing_from_the_list(fixed, monkeypatch):
    """Someone else discards it once its rows are prepared."""
    (swap,) = succeeded(fixed.weir(f"backfill run clicks {SECOND}")).commands
    (kept,) = succeeded(fixed.weir(f"backfill run clicks {THIRD}")).commands
    prepare = backfill.prepare

    def discarded_once_prepared(*arguments, **options):
        done = prepare(*arguments, **options)
        succeeded(fixed.weir(f"backfill discard clicks {swap.split()[-1]}"))
        return done

    with monkeypatch.context() as patch:
        patch.setattr(backfill, "prepare", discarded_once_prepared)
        found = refused(fixed.weir(swap, "--yes"), "nothing is prepared for it, or it has been discarded")
    assert_holds(fixed)
    listed = succeeded(fixed.take("backfill list clicks", found)).text
    assert (swap.split()[-1] in listed, kept.split()[-1] in listed) == (False, True)
    succeeded(fixed.weir(kept, "--yes"))
    assert_holds(fixed, 2)


def test_everything_is_swapped_in_after_a_stop_that_drains(fixed):
    made = succeeded(fixed.weir("backfill run clicks --everything"))
    (swap,) = made.commands
    with fixed.typing_beside(f"{swap} --yes", "stop clicks --drain") as codes:
        text = succeeded(fixed.weir("run programs:app")).text
    assert codes == [1, 0], text
    assert re.search(r"is running, .*; run `weir stop clicks --drain`, swap .* in again", text), text
    succeeded(fixed.weir(swap, "--yes"))
    assert_holds(fixed, *range(5))


def test_a_program_with_another_topic_is_run_before_its_days_are_computed(fixed):
    builder = StreamsBuilder()
    for topic in ("clicks", "views"):
        builder.stream(topic, key=String("user"), value=Json(Click)).to_delta("facts" if topic == "clicks" else topic)
    fixed.topics.rows["views", 0] = []
    fixed.topics.ids["views"] = "views"
    fixed.has("app", Application("clicks", builder, commit_interval=timedelta(milliseconds=1)))
    found = refused(fixed.weir(f"backfill run clicks {SECOND}"), "does not know topic 'views'; run this program first")
    succeeded(fixed.take("run MODULE:APP", found, "--until-caught-up", MODULE="programs:app"))
    succeeded(fixed.weir(f"backfill run clicks {SECOND}", *SWAP))
    assert facts(fixed) == of(1)


def test_a_backfill_of_rows_for_sinks_alone_is_published_when_it_is_swapped(terminal, monkeypatch):
    monkeypatch.setattr(Publishers, "start", lambda *_: None)  # what waits is looked at here
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=Json(Click)).to("copies")
    terminal.clusters[BROKERS] = Topics({("clicks", 0): list(ROWS), ("copies", 0): []}, ids={"clicks": "first"})
    program = terminal.has("app", Application("clicks", builder))
    succeeded(terminal.run(program))
    known = succeeded(terminal.weir("sink list clicks")).text
    assert "not started yet" in known
    refused(terminal.weir(f"backfill run clicks {SECOND} --publish"), "--publish belongs to the swap; add --swap")
    found = refused(
        terminal.weir(f"backfill run clicks {SECOND}", *SWAP), "it has nothing to swap, only rows for sinks"
    )
    (way_out,) = (command for command in found.commands if "--publish" in command)
    succeeded(terminal.take(way_out, found))
    outbox = Outbox(terminal.warehouse / "clicks", "copies", "clicks")
    waiting = [
        json.loads(value)["ms"]
        for rows, _ in outbox.rows(Mark(), at_most=999, size_bytes=1 << 20)
        for value in rows["value"]
    ]
    assert waiting == [*range(HOURS), *range(24, 48)]
