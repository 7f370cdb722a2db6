"""``weir top``: its screen beside a plain model of the reports, by textual's own pilot, and the command itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import DataTable

from tests.pipelines.cli.by_user import by_user
from tests.pipelines.cli.typed import Terminal
from tests.pipelines.spark.evolving import clicks
from weir.infra.control import ApplicationStatus, ControlDatabase, TaskStatusRow, this_host
from weir.pipelines.cli import top
from weir.pipelines.cli.top_screen import TopScreen
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.top import ApplicationActivity, activity_of

ACTIVITIES = ("fetch", "decode", "operators", "state", "encode", "files")
WIDE, NARROW = (140, 20), (60, 20)
OPERATORS = {"KSTREAM-SOURCE-0000000000": (9_000.0, 0.05), "KSTREAM-AGGREGATE-0000000002": (120.0, 1.25)}


def reading(group, name, value, **tags):
    tags = {tag.replace("_", "-"): text for tag, text in tags.items()}
    return {"group": f"stream-{group}-metrics", "name": name, "tags": tags, "value": value}


def life(*tasks: TaskStatusRow, readings: Sequence[dict] = ()) -> ApplicationStatus:
    return ApplicationStatus(
        application="shop",
        state="running",
        is_running=True,
        generation=3,
        owner="weir run",
        host="here",
        pid=1,
        has_process=True,
        started_at_ms=0,
        heartbeat_at_ms=0,
        ended_at_ms=None,
        error=None,
        tasks=tasks,
        metric=None,
        readings=tuple(readings),
    )


def report() -> ApplicationActivity:
    """Two tasks in two slots and two operators, as a driver reports them at ``debug``."""
    readings = [
        reading("thread", "process-rate", 12_345.6),
        reading("thread", "commit-rate", 0.75),
        reading("thread", "commit-ratio", 0.021),
        reading("task", "process-rate", 9_000.0, task_id="0_0"),
        reading("task", "process-rate", 3_345.6, task_id="0_10"),
        *(reading("task", f"{name}-ratio", 0.1 * number, task_id="0_0") for number, name in enumerate(ACTIVITIES)),
        reading("task", "num-keys", 1_234.0, task_id="0_0"),
        reading("state", "map-used-bytes", 98_765_432.0, task_id="0_0"),
        reading("state", "num-keys", 7.0, task_id="0_0", store_id="sums"),
        reading("processor-node", "process-rate", 1.0, task_id="0_0", processor_node_id="KSTREAM-SOURCE-0000000000"),
    ]
    for name, (rate, busy) in OPERATORS.items():
        readings += [
            reading("processor-node", "forward-rate", rate, processor_node_id=name),
            reading("processor-node", "busy-ratio", busy, processor_node_id=name),
        ]
    return activity_of(
        life(
            TaskStatusRow(task="0_0", slot=0, status="running", lag=40),
            TaskStatusRow(task="0_10", slot=1, status="restoring", lag=1_200, reason="1,000 rows"),
            readings=readings,
        )
    )


def on_screen(screen: TopScreen) -> str:
    lines = ("".join(part.text for part in strip).rstrip() for strip in screen.screen._compositor.render_strips())
    return "\n".join(lines)


def column(screen: TopScreen, table: str, number: int = 0) -> list[str]:
    found = screen.query_one(table, DataTable)
    return [str(found.get_row_at(row)[number]).strip() for row in range(found.row_count)]


def piloted(screen: TopScreen, act, size=WIDE) -> None:
    async def run() -> None:
        async with screen.run_test(size=size) as pilot:
            await pilot.pause()
            await act(pilot)

    asyncio.run(run())


SCREEN = """\
 shop  running  12.3k records/s  lag 1.2k  0.75 commits/s
 fetch ·  decode 5.0  operators 10  state 15  encode 20  files 25  commit 2.1  rest 23 %
 task  status     slot  records/s   lag  busy%  fetch%  decode%  operators%  state%  encode%  files%  rows  bytes  note
 0_0   running       0       9.0k    40    150       ·       10          20      30       40      50  1.2k  98.8M
 0_10  restoring     1       3.3k  1.2k      ·       ·        ·           ·       ·        ·       ·     -      -  1,000 rows
 operator                      rows/s  busy%
 KSTREAM-AGGREGATE-0000000002     120    125
 KSTREAM-SOURCE-0000000000       9.0k    5.0
 q quit  r by rate  l by lag  b by busy  n by name  t tasks  o operators
"""  # noqa: E501
"""The slot of task 0_10 did nothing, so of each activity the two slots have half of what task 0_0 has."""


def test_the_screen_shows_each_task_and_operator_with_what_was_reported():
    async def act(pilot: Pilot[None]) -> None:
        assert [line for line in on_screen(pilot.app).splitlines() if line] == SCREEN.splitlines()

    piloted(TopScreen(report(), report, 60), act)


def test_a_narrow_terminal_shows_what_matters_most_and_a_wider_one_all():
    async def act(pilot: Pilot[None]) -> None:
        lines = on_screen(pilot.app).splitlines()
        assert "task  status     records/s   lag  busy%" in [line.strip() for line in lines]
        assert all(len(line) <= NARROW[0] for line in lines)
        await pilot.resize_terminal(*WIDE)
        await pilot.pause()
        assert "operators%" in on_screen(pilot.app)

    piloted(TopScreen(report(), report, 60), act, NARROW)


def test_keys_sort_by_a_column_and_once_more_the_other_way_round():
    """Against plain sorts of random reports, in which values repeat."""
    random.seed(7)
    readings, tasks = [], []
    for number in range(12):
        name = f"{number % 2}_{number // 2}"
        tasks.append(TaskStatusRow(task=name, slot=0, status="running", lag=random.randrange(4)))
        readings.append(reading("task", "process-rate", float(random.randrange(4)), task_id=name))
        readings.append(reading("task", "state-ratio", random.randrange(4) / 10, task_id=name))
    random.shuffle(tasks)
    shown = activity_of(life(*tasks, readings=readings))
    by_name = sorted(shown.tasks, key=lambda task: [int(part) for part in task.task.split("_")])
    keys = {
        "r": lambda task: task.records_per_s,
        "l": lambda task: task.lag,
        "b": lambda task: task.shares["state"],
    }

    async def act(pilot: Pilot[None]) -> None:
        assert column(pilot.app, "#tasks") == [task.task for task in by_name]
        for key, value in keys.items():
            for is_upwards in (False, True, False):
                await pilot.press(key)
                wanted = sorted(by_name, key=lambda task: value(task) * (1 if is_upwards else -1))
                assert column(pilot.app, "#tasks") == [task.task for task in wanted], (key, is_upwards)
        await pilot.press("n", "n")
        assert column(pilot.app, "#tasks") == [task.task for task in reversed(by_name)]

    piloted(TopScreen(shown, lambda: shown, 60), act)


def test_tables_can_be_hidden_and_q_ends_it():
    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("o")
        assert "KSTREAM" not in on_screen(pilot.app)
        await pilot.press("o", "t")
        assert "KSTREAM-SOURCE" in on_screen(pilot.app)
        assert "restoring" not in on_screen(pilot.app)
        await pilot.press("q")
        assert not pilot.app.is_running

    piloted(TopScreen(report(), report, 60), act)


def test_reports_follow_each_other_and_the_end_of_the_run_is_said():
    first = report()
    second = replace(first, lag=5, tasks=(replace(first.tasks[0], lag=5), first.tasks[1]))
    coming = [second]

    def next_report() -> ApplicationActivity:
        if coming:
            return coming.pop()
        raise OperationError("shop is not running; start it with `weir run MODULE:APP`")

    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("l", "down")
        pilot.app._look()
        await pilot.pause()
        assert "lag 5 " in on_screen(pilot.app)
        assert column(pilot.app, "#tasks", 4) == ["1.2k", "5"]
        assert pilot.app.query_one("#tasks", DataTable).cursor_row == 1
        pilot.app._look()
        await pilot.pause()
        assert "shop is not running; start it with `weir run MODULE:APP`" in on_screen(pilot.app)
        assert column(pilot.app, "#tasks", 4) == ["1.2k", "5"]

    piloted(TopScreen(first, next_report, 3600), act)


@pytest.fixture
def there(terminal) -> Terminal:
    terminal.topics.rows["clicks", 0] = clicks(0, 40)
    terminal.has("app", by_user())
    assert terminal.run("programs:app").code == 0
    return terminal


def test_an_application_that_does_not_run_is_shown_once_it_does(there, monkeypatch):
    shown = []
    monkeypatch.setattr(top, "console", Console(force_terminal=True))
    monkeypatch.setattr(TopScreen, "run", lambda screen: shown.append(screen._next_report()))
    refused = there.weir("top clicks")
    assert (refused.code, "clicks is not running" in refused.text) == (1, True)
    with there.typing_beside("commit clicks", "top clicks", "stop clicks") as codes:
        there.take("run MODULE:APP", refused, MODULE="programs:app")
    assert codes == [0, 0, 0]
    assert [(each.application, [task.task for task in each.tasks]) for each in shown] == [("clicks", ["0_0"])]


def test_without_a_terminal_the_tasks_are_printed_once(there):
    database = ControlDatabase(there.settings.control_database_url)
    lease = database.acquire_lease("clicks", owner="weir run", pid=1, host=this_host(), ttl_s=60, take_over=True)
    database.heartbeat(lease, state="running")
    database.report_tasks("clicks", [TaskStatusRow(task="0_0", slot=0, status="running")])
    refused = there.weir("top clicks")
    assert (refused.code, "needs a terminal" in refused.text) == (1, True)
    answer = there.take("tasks clicks", refused)
    assert (answer.code, "0_0 clicks 0 running" in answer.text) == (0, True), answer.text


def test_a_profiled_run_shows_where_the_time_went_and_where_its_files_are(there, tmp_path):
    there.topics.rows["clicks", 0] = clicks(0, 60)
    text = there.run("programs:app", "--profile").text
    folder = there.folder / "profile" / "clicks"
    assert f"profile: {folder}" in text
    assert "fetch decode operators state encode files commit spark 0_0 " in text
    assert {path.name for path in folder.iterdir()} == {"driver.html", "epochs.csv", "operators.csv"}
    there.topics.rows["clicks", 0] = clicks(0, 70)
    elsewhere = tmp_path / "elsewhere"
    assert f"profile: {elsewhere}" in there.run("programs:app", "--profile-folder", str(elsewhere)).text
    assert {path.name for path in elsewhere.iterdir()} == {"driver.html", "epochs.csv", "operators.csv"}


def test_a_profile_that_cannot_be_written_goes_to_another_folder(there, tmp_path):
    there.topics.rows["clicks", 0] = clicks(0, 60)
    (there.folder / "profile").write_text("a file")
    refused = there.run("programs:app", "--profile")
    assert (refused.code, "name another folder with `--profile-folder FOLDER`" in refused.text) == (1, True)
    answer = there.run("programs:app", "--profile-folder", str(tmp_path / "other"))
    assert (answer.code, (tmp_path / "other" / "epochs.csv").exists()) == (0, True), answer.text
