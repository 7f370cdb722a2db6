"""Stores that a program no longer has: listed, removed for good, and never half."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from tests.pipelines.spark.evolving import Changed, Click, clicks, counted, store, users
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Json, StreamsBuilder, String
from weir.infra.control import ControlDatabase, LeaseHeldError
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations.aside import remove_store, stores_of
from weir.pipelines.operations.errors import OperationError
from weir.state.commit import protocol
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.errors import FencedError


@pytest.fixture
def place(tmp_path):
    """``clicks`` has run with the store ``more`` and then without it."""
    place = Place(Changed(more=True).application(), Topics({("clicks", 0): clicks(0, 100)}), tmp_path)
    place.run()
    place.application = Changed().application()
    place.topics.rows["clicks", 0] += clicks(100, 10)
    place.run()
    return place


@pytest.fixture
def settings(place):
    return Settings(dir=place.folder)


def come_back(place: Place) -> dict[str, str]:
    """The rows of ``more`` when the program has it again, after five more records."""
    place.application = Changed(more=True).application()
    place.topics.rows["clicks", 0] += clicks(110, 5)
    place.run()
    assert users(place) == counted(place)
    return dict(store(place, "more").select("user", "last").iter_rows())


OF_FIVE = {f"user-{number % 20}": f"page-{number % 3}" for number in range(110, 115)}


def test_stores_are_listed_and_one_in_use_or_unknown_is_not_removed(place, settings):
    found = {each.store: each for each in stores_of(settings, "clicks")}
    assert [name for name, each in found.items() if each.since_epoch] == ["more"]
    assert found["more"].changelog_rows >= 20
    shown = CliRunner().invoke(app, ["state", "list", "clicks", "--dir", str(place.folder)])
    assert re.search(r"kept aside since epoch \d+, 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", shown.output), shown.output
    assert shown.output.split("\n")[0].split("  ")[-2:] == ["changelog rows", "changelog MB"]
    with pytest.raises(OperationError, match="take it out of the program"):
        remove_store(settings, "clicks", "users")
    with pytest.raises(OperationError, match="it keeps more"):
        remove_store(settings, "clicks", "other")
    ControlDatabase(settings.control_database_url).acquire_lease("clicks", owner="a driver", pid=1, host="h", ttl_s=60)
    with pytest.raises(LeaseHeldError):
        remove_store(settings, "clicks", "more")
    assert come_back(place) == {f"user-{number % 20}": f"page-{number % 3}" for number in range(80, 100)} | OF_FIVE


def test_a_store_is_kept_aside_since_the_same_time_after_removals_and_starts(tmp_path):
    def counting(*stores: str) -> Application:
        builder = StreamsBuilder()
        clicked = builder.stream("clicks", key=String("user"), value=Json(Click)).group_by_key()
        for name in stores:
            clicked.count(name).to_delta(f"{name}_out")
        return Application("clicks", builder)

    def since() -> list[tuple[int | None, datetime | None]]:
        return [(each.since_epoch, each.since) for each in stores_of(settings, "clicks") if each.store == "second"]

    place = Place(counting("kept", "first", "second"), Topics({("clicks", 0): clicks(0, 10)}), tmp_path)
    place.run()
    last = newest_commit(place.warehouse, "clicks")
    settings = Settings(dir=place.folder)
    place.application = counting("kept")
    place.topics.rows["clicks", 0] += clicks(10, 10)
    place.run()
    expected = [(last.epoch, datetime.fromtimestamp(last.at_ms / 1000, UTC))]
    assert since() == expected
    remove_store(settings, "clicks", "first")
    assert since() == expected
    place.run()
    assert since() == expected


def test_a_removed_store_begins_empty_when_the_program_has_it_again(place, settings):
    removed = CliRunner().invoke(app, ["state", "remove", "clicks", "more", "--yes", "--dir", str(place.folder)])
    assert (removed.exit_code, "removed the store more" in removed.output) == (0, True), removed.output
    assert not (place.warehouse / "clicks" / "_changelog" / "more").exists()
    assert [each.store for each in stores_of(settings, "clicks") if each.since_epoch] == []
    assert come_back(place) == OF_FIVE
    for data in place.state_folder.glob("*/*/data.mdb"):
        data.unlink()
    place.topics.rows["clicks", 0] += clicks(115, 1)
    place.run()
    assert dict(store(place, "more").select("user", "last").iter_rows()) == {**OF_FIVE, "user-15": "page-1"}


def test_a_removal_that_was_killed_is_finished_by_the_next_call_and_by_a_program_that_has_the_store(place, settings):
    def killed(step):
        raise KeyboardInterrupt(step)

    with pytest.raises(KeyboardInterrupt):
        remove_store(settings, "clicks", "more", on_step=killed)
    newest = newest_commit(place.warehouse, "clicks")
    assert (newest.topology.removed, list(newest.removed_tables)) == (("more",), ["_changelog/more"])
    copy = place.folder.with_name("copy")
    shutil.copytree(place.folder, copy)
    remove_store(settings, "clicks", "more")
    assert not (place.warehouse / "clicks" / "_changelog" / "more").exists()
    assert come_back(Place(place.application, place.topics, copy)) == OF_FIVE


def more_again(place: Place) -> None:
    """Two runs of the program that has the store again, five records each."""
    place.application = Changed(more=True).application()
    for number in (110, 115):
        place.topics.rows["clicks", 0] += clicks(number, 5)
        place.run()


OF_TEN = {f"user-{number % 20}": f"page-{number % 3}" for number in range(110, 120)}


def test_a_removal_that_slept_leaves_the_changelog_that_a_later_program_has_begun(place, settings):
    remove_store(settings, "clicks", "more", on_step=lambda step: more_again(place))
    assert users(place) == counted(place)
    assert dict(store(place, "more").select("user", "last").iter_rows()) == OF_TEN
    place.run()
    assert dict(store(place, "more").select("user", "last").iter_rows()) == OF_TEN


def test_a_driver_that_slept_before_it_finished_a_removal_leaves_what_a_newer_one_has_begun(
    place, settings, monkeypatch
):
    def killed(step):
        raise KeyboardInterrupt(step)

    with pytest.raises(KeyboardInterrupt):
        remove_store(settings, "clicks", "more", on_step=killed)
    remove = protocol.remove_tables

    def slept(app_folder, ids):
        monkeypatch.undo()
        more_again(place)
        remove(app_folder, ids)

    monkeypatch.setattr(protocol, "remove_tables", slept)
    place.application = Changed(more=True).application()
    with pytest.raises(FencedError):
        place.run()
    place.run()
    assert users(place) == counted(place)
    assert dict(store(place, "more").select("user", "last").iter_rows()) == OF_TEN


def test_what_a_driver_commits_before_the_claim_of_a_removal_stays(place, settings, monkeypatch):
    claim = Committer.claim

    def slept(committer):
        monkeypatch.undo()
        more_again(place)
        return claim(committer)

    monkeypatch.setattr(Committer, "claim", slept)
    with pytest.raises(OperationError, match="take it out of the program"):
        remove_store(settings, "clicks", "more")
    before = {f"user-{number % 20}": f"page-{number % 3}" for number in range(80, 100)}
    assert dict(store(place, "more").select("user", "last").iter_rows()) == before | OF_TEN
    place.run()
    assert stores_of(settings, "clicks")[0].since is None
    assert dict(store(place, "more").select("user", "last").iter_rows()) == before | OF_TEN


def test_a_store_with_other_columns_begins_though_its_removal_was_killed(place, settings):
    def killed(step):
        raise KeyboardInterrupt(step)

    with pytest.raises(KeyboardInterrupt):
        remove_store(settings, "clicks", "more", on_step=killed)
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=String("page")).group_by_key().agg("more", last=Count())
    place.application = Application("clicks", builder, commit_interval=timedelta(milliseconds=1))
    place.topics.rows["clicks", 0] += clicks(110, 5)
    place.run()
    assert dict(store(place, "more").select("user", "last").iter_rows()) == dict.fromkeys(OF_FIVE, 1)
