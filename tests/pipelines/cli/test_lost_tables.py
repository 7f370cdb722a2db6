"""Tables that are lost, behind or of another format stop every start: each way out that the message names brings the
counts back, compared with a plain count over the records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.pipelines.backfill.inline import copy
from tests.pipelines.cli.by_user import by_user, counted, counts
from tests.pipelines.cli.typed import Answer, Terminal, opened
from tests.pipelines.spark.evolving import clicks
from weir.pipelines.spark.driver import Driver
from weir.state.commit import log, protocol
from weir.state.commit.protocol import newest_commit
from weir.state.commit.rollup import roll_up
from weir.state.commit.tables import read_table

ROLLED_UP = 1 << 62
"""A version after all others."""


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A folder in which ``clicks`` has counted 40 and then 20 records; ``older`` is the commit log in between."""
    with pytest.MonkeyPatch.context() as patch:
        there = opened(tmp_path_factory.mktemp("template"), patch)
        for count in (40, 60):
            there.topics.rows["clicks", 0] = clicks(0, count)
            done = there.run(there.has("app", by_user()))
            assert done.code == 0, done.text
            if count == 40:
                shutil.copytree(there.warehouse / "clicks" / "_commits", there.folder / "older")
    return there.folder


def lose(terminal: Terminal, name: str) -> None:
    shutil.rmtree(terminal.warehouse / "clicks" / name)


def forget_files(terminal: Terminal) -> None:
    """A commit log that no longer lists the files of old commits."""
    roll_up(terminal.warehouse / "clicks", ROLLED_UP)
    terminal.topics.rows["clicks", 0] += clicks(60, 5)
    assert terminal.run("programs:app").code == 0


def put_an_older_commit_log_there(terminal: Terminal) -> None:
    lose(terminal, "_commits")
    shutil.copytree(terminal.folder / "older", terminal.warehouse / "clicks" / "_commits")


RESET = "reset clicks"
LOSSES = {
    "a table": (
        lambda terminal: None,
        lambda terminal: lose(terminal, "users"),
        "neither in the table nor on disk; restore the file from a backup",
        RESET,
    ),
    "a Delta log": (
        forget_files,
        lambda terminal: lose(terminal, "users/_delta_log"),
        "restore the table's folder from a backup",
        RESET,
    ),
    "newest commits": (
        lambda terminal: None,
        put_an_older_commit_log_there,
        "put the application's whole warehouse folder back as it was at one moment",
        "reset clicks",
    ),
    "the commit log and all state": (
        lambda terminal: None,
        lambda terminal: (lose(terminal, "_commits"), shutil.rmtree(terminal.settings.state_dir)),
        "put the application's warehouse folder back",
        "reset clicks",
    ),
}


def refused(terminal: Terminal, text: str) -> Answer:
    found = terminal.run("programs:app")
    assert (found.code, text in found.text) == (1, True), found.text
    return found


def assert_all_is_counted(terminal: Terminal) -> None:
    terminal.topics.rows["clicks", 0] += clicks(65, 10)
    done = terminal.run("programs:app")
    assert done.code == 0, done.text
    assert counts(terminal) == counted(terminal)


@pytest.fixture
def there(terminal, template) -> Terminal:
    copy(template, terminal.folder)
    terminal.topics.rows["clicks", 0] = clicks(0, 60)
    terminal.has("app", by_user())
    return terminal


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_lost_is_put_back_or_the_application_is_reset(there, loss):
    prepare, injure, restore, reset = LOSSES[loss]
    prepare(there)
    copy(there.warehouse, there.folder / "backup")
    injure(there)
    refused(there, restore)
    shutil.rmtree(there.warehouse)
    copy(there.folder / "backup", there.warehouse)
    assert_all_is_counted(there)
    prepare(there)
    injure(there)
    assert there.take(reset, refused(there, restore), APP="clicks").code == 0
    assert_all_is_counted(there)


def test_a_file_that_an_output_has_lost_is_put_back_or_the_application_is_reset(there):
    good = there.weir("verify clicks")
    assert good.code == 0, good.text
    assert "table users: 2 files" in good.text
    file = sorted((there.warehouse / "clicks" / "users").rglob("*.parquet"))[0]
    kept = there.folder / "kept"
    shutil.move(file, kept)
    for command in ("verify clicks", "verify clicks --sample 1"):
        refused = there.weir(command)
        assert refused.code == 1
        assert f"'clicks' names the file {file}: it is gone; put it back from a backup" in refused.text
    shutil.copy2(kept, file)
    assert there.weir("verify clicks").code == 0
    file.unlink()
    assert there.take(RESET, there.weir("verify clicks"), APP="clicks").code == 0
    assert_all_is_counted(there)
    assert there.weir("verify clicks").code == 0


def test_a_commit_log_that_is_gone_under_a_run_is_put_back_or_the_application_is_reset(there, monkeypatch):
    copy(there.warehouse, there.folder / "backup")
    begin = Driver.run

    def gone(*arguments, **options):
        lose(there, "_commits")
        return begin(*arguments, **options)

    def refused_under_a_run() -> Answer:
        there.topics.rows["clicks", 0] += clicks(60, 5)
        with monkeypatch.context() as patch:
            patch.setattr(Driver, "run", gone)
            return refused(there, "was removed, or replaced by an older copy, while a process was using it; put the")

    refused_under_a_run()
    shutil.rmtree(there.warehouse)
    copy(there.folder / "backup", there.warehouse)
    assert_all_is_counted(there)
    assert there.take(RESET, refused_under_a_run(), APP="clicks").code == 0
    assert_all_is_counted(there)


def test_a_format_that_this_version_does_not_know_is_read_by_the_one_that_does_or_reset(there, monkeypatch):
    known = log.FORMATS
    monkeypatch.setattr(log, "FORMATS", (99,))
    answer = refused(there, "run the version that wrote it")
    monkeypatch.setattr(log, "FORMATS", known)
    assert_all_is_counted(there)
    monkeypatch.setattr(log, "FORMATS", (99,))
    assert there.take(RESET, answer, APP="clicks").code == 0
    monkeypatch.setattr(log, "FORMATS", known)
    assert_all_is_counted(there)


def test_when_the_numbers_of_epochs_are_used_up_the_application_is_reset(there, monkeypatch):
    newest = newest_commit(there.warehouse, "clicks")
    there.topics.rows["clicks", 0] += clicks(60, 5)
    before = counts(there)
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "EPOCHS", newest.epoch + 1)
        found = refused(there, f"'clicks' has used up its {newest.epoch + 1:,} epochs")
    assert newest_commit(there.warehouse, "clicks") == newest
    assert counts(there) == before
    assert there.take("reset clicks", found).code == 0
    assert_all_is_counted(there)


def test_a_table_that_needs_more_than_weir_writes_is_copied_and_the_application_reset(there):
    """Someone has added a constraint to it."""
    users = there.warehouse / "clicks" / "users"
    DeltaTable(users).alter.add_constraint({"counted": "n > 0"})
    found = refused(there, "users of 'clicks' requires its writers to support writer version 3, which Weir does not")
    before = counts(there)
    copy(users, there.folder / "copied")
    assert there.take("reset clicks", found).code == 0
    assert_all_is_counted(there)
    assert dict(read_table(there.folder / "copied").select("user", "n").iter_rows()) == before
