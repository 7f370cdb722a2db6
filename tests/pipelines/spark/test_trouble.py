"""The driver when something is away, lost or full: it waits, restores or stops, says so, and keeps answering."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from threading import Event

import pytest

from tests.pipelines.spark.inline import InlineRestores, Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.pipelines.spark import driver as module
from weir.pipelines.spark.control import ControlPanel
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.errors import CommitLogLostError, OffsetsLostError, RestoreFailedError
from weir.pipelines.spark.restore_jobs import Restored, RestoreRequest, read_progress, restore
from weir.state.commit.protocol import newest_commit
from weir.state.engine.copies import committed_copy
from weir.state.engine.quarantine import quarantined
from weir.state.engine.task_store import TaskStore
from weir.state.errors import DeltaLogGoneError, FencedError
from weir.state.types import IsolationLevel, StateId, TaskId


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BROKER_WAIT_S", 0.001)
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    return Place(application(), topics, tmp_path, max_records=30)


def test_brokers_that_go_away_between_the_topics_and_the_first_positions_are_waited_for(place, monkeypatch):
    """A start asks them for the topics, and again where each begins: an answer to the first promises none to both."""
    said, answer = list[str](), place.topics.beginning_offsets

    def wait(error: Exception) -> bool:
        said.append(str(error))
        return len(said) < 10

    def start_offsets(wanted):
        if len(said) < 3:
            raise BrokerUnreachableError("nowhere:1", "no answer")
        return answer(wanted)

    monkeypatch.setattr(place.topics, "start_offsets", start_offsets)
    with pytest.raises(BrokerUnreachableError, match="nowhere:1"):
        place.run()  # told to stop
    place.wait_for_brokers = wait
    place.run()
    assert len(said) == 3
    assert totals(place) == expected(place)


def away(place: Place, monkeypatch, times: int) -> list[int]:
    """Let the brokers fail to answer ``times`` times; returns the list of calls."""
    answer, calls = place.topics.end_offsets, []

    def end_offsets(wanted):
        calls.append(len(calls))
        if len(calls) <= times:
            raise BrokerUnreachableError("nowhere:1", "no answer")
        return answer(wanted)

    monkeypatch.setattr(place.topics, "end_offsets", end_offsets)
    return calls


@pytest.mark.parametrize("until_caught_up", [True, False])
def test_a_stop_is_answered_while_the_brokers_are_away(place, monkeypatch, until_caught_up):
    calls, stop = away(place, monkeypatch, 10_000), Event()
    asked = place.desk.ask("stop")

    def give_up(progress):
        if len(calls) > 20:
            stop.set()

    summary = place.driver(on_progress=give_up).run(stop, until_caught_up=until_caught_up)
    assert (summary.reason, stop.is_set()) == ("stopped", False)
    assert place.desk.answers[asked][0].startswith("stopping")


def test_brokers_that_go_away_during_a_catch_up_are_asked_again_and_reported(place, monkeypatch):
    """Only asking restarts an embedded broker, and only asking can tell people what the run waits for."""
    messages, reads = [], []
    reader = place.topics.reader

    def reader_without_answers(topic, partition):
        found = reader(topic, partition)
        reads.append(topic)
        if 4 < len(reads) <= 8:
            found.rows = []
        return found

    monkeypatch.setattr(place.topics, "reader", reader_without_answers)
    driver = place.driver(on_progress=lambda progress: messages.append(progress.message))
    end_offsets, answers = place.topics.end_offsets, []

    def gone_after_the_start(wanted):
        answers.append(wanted)
        if len(answers) == 2:
            raise BrokerUnreachableError("nowhere:1", "no answer")
        return end_offsets(wanted)

    monkeypatch.setattr(place.topics, "end_offsets", gone_after_the_start)
    assert driver.run(Event(), until_caught_up=True).reason == "caught_up"
    assert any("nowhere:1" in message for message in messages)
    assert totals(place) == expected(place)


def test_a_topic_that_ends_before_the_committed_position_stops_the_start(place):
    place.run()
    del place.topics.rows["sales", 1][40:]
    with pytest.raises(OffsetsLostError, match=r"offset 100 of topic 'sales', partition 1.* ends at 40.*weir reset"):
        place.run()


@pytest.mark.parametrize("lost", ["", "_commits"])
def test_state_without_a_commit_log_stops_every_start_until_the_folder_is_back_or_the_state_is_gone(place, lost):
    place.run()
    gone = place.warehouse / "sales" / lost
    gone.rename(place.folder / "aside")
    for _ in range(2):
        with pytest.raises(CommitLogLostError, match=r"has run before \(there is local state in .*weir reset sales"):
            place.run()
    assert not gone.exists(), "nothing was claimed"
    (place.folder / "aside").rename(gone)
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(20, partition)
    assert place.run().records_in == 40
    assert totals(place) == expected(place)


def test_tables_without_a_commit_log_and_without_state_stop_the_start_too(place):
    """As after a move to another machine that left the log behind: appends to such tables would count as done."""
    place.run()
    shutil.rmtree(place.warehouse / "sales" / "_commits")
    shutil.rmtree(place.state_folder)
    with pytest.raises(CommitLogLostError, match=r"there is a table 'totals' beside it"):
        place.run()


@pytest.mark.parametrize("lost", ["_commits", "_commits/_delta_log"])
def test_a_run_whose_commit_log_is_removed_says_so_and_goes_on_once_the_folder_is_put_back(place, lost):
    place.run()
    place.topics.rows["sales", 0] += sales(30, 0)
    folder, kept = place.warehouse / "sales", place.folder / "kept"

    def lose(step):
        if step == "files written" and not kept.exists():
            shutil.copytree(folder, kept)
            shutil.rmtree(folder / lost)

    with pytest.raises(DeltaLogGoneError, match="_commits/_delta_log no longer has what"):
        place.run(lose)
    with pytest.raises(CommitLogLostError, match="put the application's warehouse folder back"):
        place.run()
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    place.run()
    assert totals(place) == expected(place)


def test_a_first_run_that_was_killed_before_its_first_commit_is_begun_again(place):
    def die(reason, **options):
        raise KeyboardInterrupt

    driver = place.driver()
    driver._commit = die
    with pytest.raises(KeyboardInterrupt):
        driver.run(Event(), until_caught_up=True)
    assert list(place.state_folder.glob("*/first")), "there is state that no commit knows"
    assert place.run().records_in == 200
    assert totals(place) == expected(place)


def test_where_the_first_run_began_is_durable_before_it_reads_a_record(place):
    """With start="latest", records that arrive between a kill and the next start would be skipped."""
    place.topics.rows = {("sales", 0): [], ("sales", 1): []}
    place.run()
    tasks = newest_commit(place.warehouse, "sales").tasks
    assert [task.positions for task in tasks.values()] == [{"sales": {0: 0}}, {"sales": {1: 0}}]
    stop = Event()
    other = Place(application(), place.topics, place.folder / "killed")
    driver = other.driver(on_progress=lambda progress: stop.set() if progress.committed_epoch else None)
    driver._finish = lambda reason, stop: None  # killed
    driver.run(stop, until_caught_up=False)
    assert newest_commit(other.warehouse, "sales") is not None


@pytest.mark.slow
def test_an_idle_task_whose_store_is_lost_restores_without_waiting_for_input(place):
    place.run()
    place.topics.rows["sales", 0] += sales(30, 0)
    place.topics.rows["sales", 1] += sales(30, 1)
    stop, settled = Event(), []
    driver = place.driver(on_progress=lambda progress: stop.set() if place.restores.done else None)
    coordinator = driver._coordinator
    settle = coordinator.slots.settle

    def lose_a_store(requests):
        settled.append(len(settled))
        if len(settled) == 1:
            shutil.rmtree(place.state_of("0_1") / "first")
        if len(settled) > 20:
            stop.set()
        return settle(requests)

    coordinator.slots.settle = lose_a_store
    driver.run(stop)
    assert [str(done.request.task) for done in place.restores.done] == ["0_1"]
    assert len(settled) < 5
    assert totals(place) == expected(place)


def test_a_restore_that_outlasts_a_commit_is_done_once(place, monkeypatch):
    place.application = application(commit_interval=timedelta(hours=1))
    place.run()
    finished, commits, asked = InlineRestores.finished, [], []

    def slowly(restores):
        return finished(restores) if commits and restores.waiting else []

    monkeypatch.setattr(InlineRestores, "finished", slowly)

    def on_progress(progress):
        if not asked:
            asked.append(place.desk.ask("restore", task="0_1"))
        elif place.restores.waiting and not commits:
            coordinator = driver._coordinator
            assert not coordinator.needs_settling, "a task that restores has nothing to settle"
            coordinator.commit("while it restores")
            commits.append(1)

    driver = place.driver(on_progress=on_progress)
    monkeypatch.setattr(module, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(module, "REPORT_SHARE", 1_000.0)
    monkeypatch.setattr(driver, "_has_caught_up", lambda result: bool(place.restores.done) and result is None)
    driver.run(Event(), until_caught_up=True)
    assert len(place.restores.done) == 1
    assert totals(place) == expected(place)


@pytest.mark.slow
def test_a_restore_whose_first_attempt_died_is_repeated(place, monkeypatch):
    """Spark starts a task again when its worker dies; the half-built instance must not get in the way."""
    place.run()
    commit = newest_commit(place.warehouse, "sales")
    request = RestoreRequest(
        task=TaskId(0, 1),
        instance="new",
        commit=commit.tasks[place.name_of("0_1")],
        through=commit.state_id,
        generation=2,
        reason="a test",
        take_snapshot=False,
    )

    class Killed(BaseException):
        pass

    def die(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(TaskStore, "bulk_load", die)
        with pytest.raises(Killed):
            restore(place.application, place.settings, request, place.topics.reader)
    assert restore(place.application, place.settings, request, place.topics.reader).rows == 5


@pytest.mark.slow
def test_a_restore_reports_its_progress_and_the_status_shows_it(place, monkeypatch):
    place.run()
    monkeypatch.setattr("weir.pipelines.spark.restore_jobs.TELL_EVERY_S", 0.0)
    rows, told, bulk_load = [], [], TaskStore.bulk_load

    def load_and_look(store, *args, **kwargs):
        bulk_load(store, *args, **kwargs)
        told.append(read_progress(store.folder.parent))

    monkeypatch.setattr(TaskStore, "bulk_load", load_and_look)
    monkeypatch.setattr(
        InlineRestores,
        "progress",
        lambda restores: {
            request.task: read_progress(place.state_of("0_1")) or told[0] for request in restores.waiting if told
        },
    )
    shutil.rmtree(place.state_of("0_1") / "first")
    finished = InlineRestores.finished

    def one_look_later(restores):
        if told or not restores.waiting:
            return finished(restores)
        restore(place.application, place.settings, replace(restores.waiting[0], instance="trial"), place.topics.reader)
        return []

    monkeypatch.setattr(InlineRestores, "finished", one_look_later)
    monkeypatch.setattr(module, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(module, "REPORT_SHARE", 1_000.0)
    place.desk.report = lambda progress, tasks, ends: rows.extend(
        ControlPanel(None)._row(task, ends, is_paused=False) for task in tasks
    )
    place.topics.rows["sales", 0] += sales(30, 0)
    place.run()
    assert (told[0].rows, told[0].bytes_read < told[0].bytes_total) == (5, False)
    shown = {row.reason for row in rows if row.status == "restoring"}
    assert f"{told[0]}; the folder is missing or holds no data" in shown
    assert read_progress(place.state_of("0_1")) is None
    assert rows[-1].reason == "the folder is missing or holds no data"


def test_a_restore_that_fails_stops_the_run_with_the_task_and_the_reason(place, monkeypatch):
    place.run()
    shutil.rmtree(place.state_of("0_1") / "first")
    place.topics.rows["sales", 0] += sales(30, 0)

    def finished(restores):
        failed = [
            Restored(request=request, rows=0, seconds=0.0, error="OSError: the disk is gone")
            for request in restores.waiting
        ]
        restores.waiting.clear()
        return failed

    with monkeypatch.context() as patch:
        patch.setattr(InlineRestores, "finished", finished)
        with pytest.raises(RestoreFailedError, match=r"task 0_1 .*the disk is gone.*a new start"):
            place.run()
    assert newest_commit(place.warehouse, "sales").tasks[place.name_of("0_0")].positions == {"sales": {0: 130}}
    place.run()
    assert totals(place) == expected(place)


def test_a_lost_settling_job_is_run_again(place):
    stop = Event()
    driver = place.driver(on_progress=lambda progress: stop.set() if progress.lag == 0 else None)
    coordinator = driver._coordinator
    settle, tries = coordinator.slots.settle, []

    def lost_once(requests):
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("Job aborted")
        return settle(requests)

    coordinator.slots.settle = lost_once
    assert driver.run(stop).reason == "stopped"
    assert len(tries) >= 2


def test_a_busy_run_lets_idle_tasks_hear_of_a_commit(place):
    """PROTOCOL 11: the first epoch after a commit visits every task that has an undo log."""
    place.topics.rows["sales", 1] = place.topics.rows["sales", 1][:10]
    driver = place.driver()
    coordinator, stores = driver._coordinator, []
    run_epoch = coordinator.run_epoch

    def watched(*args, **others):
        result = run_epoch(*args, **others)
        stores.append((coordinator.tasks[TaskId(0, 1)].has_undo, coordinator.commits))
        return result

    coordinator.run_epoch = watched
    driver.run(Event(), until_caught_up=True)
    assert stores[0] == (True, 0)
    assert next(has_undo for has_undo, commits in stores if commits == 1) is False


@pytest.mark.slow
def test_a_generation_that_was_overtaken_is_told_so_when_it_settles(place):
    place.run()
    older = place.driver()
    newer = place.driver()
    newer.run(Event(), until_caught_up=True)
    runner = older._coordinator.slots.runner
    assert not runner.settle(TaskId(0, 0), "first", generation=2, committed=StateId(1, 1), close=False)


def test_a_driver_that_was_overtaken_touches_no_store_when_a_restore_is_requested(place):
    place.run()
    older = place.driver()
    stop = Event()
    newer = place.driver()
    instance = place.state_of("0_0") / "first"
    place.desk.ask("restore", task="0_0")
    with pytest.raises(FencedError):
        older.run(stop, until_caught_up=True)
    place.restores.finished()
    assert (instance / "data.mdb").exists()
    place.desk.answers[1] = ("", True)
    assert newer.run(Event(), until_caught_up=True).reason == "caught_up"


def test_a_start_leaves_the_copies_of_a_verification_alone(place):
    place.run()
    instance = place.state_of("0_0") / "first"
    with committed_copy(instance, instance.parent.name) as copy:
        place.topics.rows["sales", 0] += sales(10, 0)
        place.run()
        with copy.reader(IsolationLevel.READ_UNCOMMITTED) as rows:
            assert rows.count("sums") == 5
    assert quarantined(place.state_folder) == []


@pytest.mark.parametrize("asleep_after", ["start", "check_claim"])
def test_a_driver_that_is_overtaken_while_it_starts_leaves_the_stores_of_the_newer_one_alone(
    place, monkeypatch, asleep_after
):
    place.run()
    for data in place.state_folder.glob("*/first/data.mdb"):
        data.unlink()
    step, restored = getattr(Coordinator, asleep_after), []

    def overtaken(*given, **accepts):
        monkeypatch.undo()
        step(*given, **accepts)
        place.topics.rows["sales", 0] += sales(10, 0)
        place.run()
        restored.extend(place.restores.done)

    monkeypatch.setattr(Coordinator, asleep_after, overtaken)
    with pytest.raises(FencedError):
        place.run()
    assert len(restored) == 2
    place.topics.rows["sales", 0] += sales(10, 0)
    place.run()
    assert place.restores.done == [], "the newer driver's instances go on"
    assert totals(place) == expected(place)


def test_restores_of_one_task_in_one_epoch_build_instances_of_different_names(place):
    place.run()
    driver = place.driver()
    names = set()
    for _ in range(2):
        place.desk.ask("restore", task="0_0")
        driver._answer_requests()
        names.update(request.instance for request in place.restores.waiting)
        driver._restores.take_up()
    assert len(names) == 2
