"""A restore whose driver was frozen and has been overtaken leaves what the newer driver uses (PROTOCOL 20)."""

from __future__ import annotations

from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.pipelines.spark import restore_jobs
from weir.pipelines.spark.restore_jobs import Restored, restore
from weir.state.engine import quarantine as module
from weir.state.engine.instances import current_instance
from weir.state.engine.quarantine import quarantined
from weir.state.errors import FencedError, FencedStoreError


@pytest.fixture
def place(tmp_path):
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    place = Place(application(), topics, tmp_path, max_records=30)
    place.run()
    return place


def run_newer(place: Place) -> None:
    """Another driver takes over, reads more and ends."""
    place.topics.rows["sales", 0] += sales(30, 0)
    place.run()


def begun(place: Place):
    """A driver that has begun to restore task ``0_0``; its jobs are yet to run."""
    driver = place.driver()
    place.desk.ask("restore", task="0_0")
    driver._answer_requests()
    (request,) = place.restores.waiting
    return driver, lambda: restore(place.application, place.settings, request, place.topics.reader)


def assert_the_newer_goes_on(place: Place) -> None:
    assert quarantined(place.state_folder) == []
    assert current_instance(place.state_of("0_0")) == place.state_of("0_0") / "first"
    assert not (place.state_of("0_0") / "first" / "reason.txt").exists()
    run_newer(place)
    assert place.restores.done == []
    assert totals(place) == expected(place)


@pytest.mark.parametrize("has_claimed_only", [False, True])
def test_one_that_begins_after_a_newer_driver_has_claimed_moves_nothing(place, has_claimed_only):
    _, carry_out = begun(place)
    newer = place.driver() if has_claimed_only else run_newer(place)
    with pytest.raises(FencedStoreError, match="task sales_0: this is generation 2, but generation 3 has taken over"):
        carry_out()
    if newer is not None:
        newer.run(Event(), until_caught_up=True)
    assert_the_newer_goes_on(place)


def test_one_that_is_frozen_just_before_it_moves_the_folder_puts_it_back(place, monkeypatch):
    _, carry_out = begun(place)
    write_reason = module.replace_file

    def frozen(*given):
        monkeypatch.undo()
        run_newer(place)
        write_reason(*given)

    monkeypatch.setattr(module, "replace_file", frozen)
    with pytest.raises(FencedStoreError, match="this is generation 2, but generation 3 has taken over"):
        carry_out()
    assert_the_newer_goes_on(place)


def test_one_that_ends_after_a_newer_driver_has_restored_the_task_does_not_name_its_instance(place, monkeypatch):
    _, carry_out = begun(place)
    rebuild = restore_jobs.restore_task

    def frozen(*given, **options):
        monkeypatch.undo()
        run_newer(place)
        return rebuild(*given, **options)

    monkeypatch.setattr(restore_jobs, "restore_task", frozen)
    with pytest.raises(FencedStoreError):
        carry_out()
    (done,) = place.restores.done
    assert current_instance(place.state_of("0_0")) == place.state_of("0_0") / done.request.instance
    run_newer(place)
    assert place.restores.done == []
    assert totals(place) == expected(place)


def test_one_that_is_frozen_just_before_it_names_its_instance_names_that_of_the_newer_driver_again(place, monkeypatch):
    _, carry_out = begun(place)
    name = restore_jobs.set_current

    def frozen(*given):
        monkeypatch.undo()
        run_newer(place)
        name(*given)

    monkeypatch.setattr(restore_jobs, "set_current", frozen)
    with pytest.raises(FencedStoreError):
        carry_out()
    (done,) = place.restores.done
    assert current_instance(place.state_of("0_0")) == place.state_of("0_0") / done.request.instance


def test_a_driver_whose_restore_was_overtaken_says_that_it_was(place):
    driver, _ = begun(place)
    (request,) = place.restores.waiting
    older = place.restores
    run_newer(place)
    older.finished = lambda: [Restored(request=request, rows=0, seconds=0.0, error="overtaken")]
    with pytest.raises(FencedError):
        driver._restores.take_up()
