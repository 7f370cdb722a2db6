"""Commands over a warehouse on an object store, which is a server that speaks S3; tasks run in this process."""

from __future__ import annotations

from collections import Counter

import obstore
import pytest

from tests.faults.dying import KilledError
from tests.pipelines.cli.daily import HOURS, ROWS, SECOND, SWAP, daily, of, refused, succeeded
from tests.pipelines.cli.typed import BROKERS, Terminal
from tests.pipelines.spark.inline import Topics
from weir.infra import jars
from weir.pipelines.operations import sql
from weir.state.commit.tables import read_table
from weir.state.storage import object_store
from weir.state.storage.contract import Folder
from weir.state.storage.object_store import ObjectFolder
from weir.state.storage.places import folder_at


@pytest.fixture
def remote(terminal, s3_bucket, monkeypatch) -> Terminal:
    """Where a program that leaves some records out has read all of them."""
    monkeypatch.setenv("WEIR_WAREHOUSE", f"{s3_bucket}/warehouse")
    terminal.clusters[BROKERS] = Topics({("clicks", 0): list(ROWS)}, ids={"clicks": "first"})
    succeeded(terminal.run(terminal.has("app", daily(is_fixed=False))))
    return terminal


@pytest.fixture
def warehouse(s3_bucket) -> Folder:
    return folder_at(f"{s3_bucket}/warehouse")


def facts(warehouse: Folder) -> list[int]:
    return sorted(read_table(warehouse / "clicks" / "facts")["ms"])


def test_tables_are_shown_stores_queried_and_all_of_it_verified(remote, warehouse):
    assert facts(warehouse) == of()
    users = Counter(f"user-{number % 4}" for number in of())
    for command in ("show clicks users --json", "query clicks users user-2 --json"):
        assert f'"n": {users["user-2"]}' in succeeded(remote.weir(command)).text
    assert "clicks" in succeeded(remote.weir("status")).text
    succeeded(remote.weir("verify clicks"))
    assert not (remote.folder / "warehouse").exists()


def test_a_backfill_is_swapped_in_and_a_compaction_leaves_the_rows(remote, warehouse):
    remote.has("app", daily())
    succeeded(remote.weir(f"backfill run clicks {SECOND}", *SWAP))
    assert facts(warehouse) == of(1)
    succeeded(remote.weir("compact clicks"))
    assert facts(warehouse) == of(1)
    remote.clusters[BROKERS].rows["clicks", 0] += ROWS[:6]
    succeeded(remote.run("programs:app"))
    assert Counter(facts(warehouse)) == Counter([*of(1), *range(6)])
    succeeded(remote.weir("verify clicks"))


def test_what_killed_deletions_have_left_goes_with_the_next_compaction(remote, warehouse, monkeypatch):
    def dies(self, keys):
        raise KilledError

    places = (warehouse, warehouse / "clicks" / "_backfills")
    for place in places:
        place.put("gone/table/1.parquet", b"x")
        with monkeypatch.context() as broken:
            broken.setattr(ObjectFolder, "_delete", dies)
            with pytest.raises(KilledError):
                place.delete_folder("gone")
    succeeded(remote.weir("compact clicks"))
    assert [file.name for place in places for file in place.list("gone/", below=True)] == []
    assert facts(warehouse) == of()


def test_a_reset_deletes_all_that_is_there_and_the_next_run_begins_again(remote, warehouse):
    succeeded(remote.weir("reset clicks --yes"))
    assert list(warehouse.list(below=True)) == []
    remote.has("app", daily())
    succeeded(remote.run("programs:app"))
    assert facts(warehouse) == list(range(HOURS))


def test_a_deleted_file_is_named_by_verify(remote, warehouse):
    table = warehouse / "clicks" / "facts"
    file = next(file.name for file in table.list() if file.name.endswith(".parquet"))
    table.delete([file])
    assert f"{table}/{file}" in refused(remote.weir("verify clicks"), "facts").text


@pytest.mark.spark
def test_sql_reads_outputs_and_changelogs(remote):
    try:
        jars.fetch("s3")
    except jars.JarsError as error:
        pytest.skip(f"no repository has them: {error}")
    query = "SELECT sum(ms) AS ms, count(*) AS rows, (SELECT sum(n) FROM users) AS n FROM facts"
    answer = succeeded(remote.weir("sql clicks --format csv", f"{query}; SELECT sum(n) AS n FROM store.users"))
    assert f"ms,rows,n {sum(of())},{len(of())},{len(of())} n {len(of())}" in answer.text


def test_where_spark_does_not_read_sql_says_what_to_use_instead(remote, monkeypatch):
    monkeypatch.setattr(sql, "ON_S3", "s4://")
    answer = refused(remote.weir("sql clicks", "SELECT 1"), "Spark SQL reads local disks and S3 only")
    assert "show clicks TABLE" in answer.commands
    succeeded(remote.weir("show clicks users"))


def test_a_bucket_that_is_not_there_is_named_and_with_the_right_one_it_runs(remote, s3_bucket, monkeypatch):
    monkeypatch.setenv("WEIR_WAREHOUSE", f"{s3_bucket}-2/warehouse")
    for command in ("run programs:app --until-caught-up", "status", "show clicks users", "plan programs:app"):
        answer = refused(remote.weir(command), f"the object store of {s3_bucket}-2/warehouse")
        refused(answer, "404 Not Found: The specified bucket does not exist; check the bucket, and the credentials")
    monkeypatch.setenv("WEIR_WAREHOUSE", f"{s3_bucket}/warehouse")
    succeeded(remote.run("programs:app"))


def test_state_without_its_warehouse_is_refused(remote, s3_bucket, monkeypatch):
    monkeypatch.setenv("WEIR_WAREHOUSE", f"{s3_bucket}/another")
    refused(remote.run("programs:app"), f"its commit log {s3_bucket}/another/clicks/_commits")


def test_a_store_that_lets_a_second_writer_win_is_refused_at_the_start_and_a_local_disk_is_taken(
    terminal, s3_bucket, monkeypatch
):
    def put(*arguments, put=obstore.put, mode="overwrite", **options):
        return put(*arguments, **options)

    terminal.clusters[BROKERS] = Topics({("clicks", 0): list(ROWS)}, ids={"clicks": "first"})
    monkeypatch.setattr(object_store.obstore, "put", put)
    program = terminal.has("app", daily())
    answer = terminal.run(program, "--set", f"warehouse={s3_bucket}/warehouse")
    refused(answer, "use a store that does, such as Amazon S3, or a folder of a local disk")
    assert list(folder_at(f"{s3_bucket}/warehouse").list(below=True)) == []
    succeeded(terminal.run(program, "--set", f"warehouse={terminal.folder / 'elsewhere'}"))
    assert sorted(read_table(terminal.folder / "elsewhere" / "clicks" / "facts")["ms"]) == list(range(HOURS))
