"""Operating an application in the Dagster UI with a real browser; screenshots are kept in ``build/screenshots``."""

import re
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from playwright.sync_api import expect

from tests.browser.story import Story
from tests.waiting import wait_for
from weir.infra.control import ControlDatabase
from weir.pipelines.operations.backfills import backfills
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

pytestmark = [pytest.mark.browser, pytest.mark.dagster, pytest.mark.spark, pytest.mark.broker, pytest.mark.timed]

RUN_LIMIT_S = 240.0
TERMINATED_LIMIT_S = 15.0
JOBS_SHOW = ("backfill", "compaction", "checkpoints", "positions")
DAYS = {"2013-03-04", "2013-03-05", "2013-03-06"}


def test_the_ui_supports_an_operators_day(story, settings):
    """The graph, an ingest that becomes healthy, a continuous one, a restore and a backfill during it, its end; then
    backfills that are listed, swapped in and discarded."""
    database = ControlDatabase(settings.control_database_url)
    with story.step("graph"):
        story.open("/locations/weir/asset-groups/weather/lineage")
        for asset in ("topic", "ingest", "daily_weather", "daily", "dead_letters", *JOBS_SHOW):
            story.text(asset).wait_for()
        expect(story.page.get_by_text("Never materialized")).to_have_count(5)

    with story.step("topic-loaded", RUN_LIMIT_S):
        story.open("/assets/weather/topic")
        story.button("Materialize").click()
        story.open_launched_run()
        assert story.ended() == "Success"

    with story.step("ingest-materialized", RUN_LIMIT_S):
        story.open("/assets/weather/ingest")
        story.button("Materialize").click()
        story.open_launched_run()
        assert story.ended() == "Success"
    assert read_rows(settings.warehouse / "weather" / "daily_weather").height == 1089

    with story.step("healthy"):
        story.open("/locations/weir/asset-groups/weather/lineage")
        story.text("8 / 8 Passed").wait_for()
        for passed in ("3 / 3 Passed", "1 / 1 Passed"):  # of the output table, and of the dead letters
            story.text(passed).wait_for()
        expect(story.page.get_by_text("Never materialized")).to_have_count(0)

    with story.step("ingest"):
        story.open("/assets/weather/ingest")
        story.text("last_hour").wait_for()
        story.text("last_day").wait_for()
        story.text("records/s").wait_for()

    with story.step("topology"):
        story.text("[Show Markdown]").click()
        drawn = story.page.get_by_role("img", name="topology")
        drawn.wait_for()
        assert drawn.evaluate("image => image.naturalWidth") > 300

    with story.step("checks"):
        story.open("/assets/weather/ingest?view=checks")
        story.text("state_equals_changelog").click()
        story.text("rows_by_task").wait_for()

    with story.step("running", RUN_LIMIT_S):
        story.open("/locations/weir/jobs/weather_run")
        story.button("Materialize all").click()
        story.open_launched_run()
        story.text(re.compile("running: epoch")).wait_for()
        running = story.page.url

    with story.step("backfill-of-three-days"):
        story.open("/assets/weather/backfill")
        story.button("Materialize").click()
        story.text("Select a partition or create one").click()
        for day in sorted(DAYS):
            story.page.get_by_placeholder("Filter partitions").fill(day)
            story.page.get_by_role("menuitem", name=day).first.click()
        story.page.keyboard.press("Escape")  # the list covers what is below
        story.text("3 partitions").wait_for()
        story.picture("backfill-dialogue")
        story.button("Launch backfill").click()
        story.text(re.compile("Created backfill")).wait_for()

    with dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        assert "weather:0_1" in instance.get_dynamic_partitions("weir_tasks"), (
            "the tasks are the restore job's partitions"
        )
        with story.step("restored", RUN_LIMIT_S):
            launch(story, "weir_restore", "weather:0_1")

        with story.step("backfilled"):
            wait_for(
                lambda: instance.get_materialized_partitions(dg.AssetKey(["weather", "backfill"])) == DAYS,
                "the days are there",
                RUN_LIMIT_S,
            )
            story.open("/runs")
            story.text("3 partitions").wait_for()
    assert [row.state for row in backfills(settings, "weather")] == ["swapped in"]
    life = database.application_status("weather")
    assert life.is_running
    assert life.generation == 2, "it kept running through both"

    with story.step("terminated"):
        story.page.goto(running)
        story.button("Terminate").click()
        story.picture("terminate-dialogue")
        clicked_s = time.time()
        story.page.get_by_role("dialog").get_by_role("button", name=re.compile("Terminate")).click()
        wait_for(lambda: not database.is_running("weather"), "the driver has ended", TERMINATED_LIMIT_S)
        story.page.goto(running)
        assert story.ended() == "Canceled"
    with dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        record = instance.get_run_record_by_id(re.search(r"/runs/([^/?]+)", running)[1])
    assert record.end_time - clicked_s < TERMINATED_LIMIT_S
    ended = database.application_status("weather")
    assert (ended.state, ended.error) == ("stopped", None)
    assert newest_commit(settings.warehouse, "weather").generation == 2

    made = [recomputed(day) for day in ((4, 5), (5, 6))]
    with story.step("backfills-listed", RUN_LIMIT_S):
        launch(story, "weir_backfills", "weather")
        for backfill in made:
            story.text(backfill).wait_for()
    swapped, discarded = made
    with story.step("backfill-swapped-in", RUN_LIMIT_S):
        launch(story, "weir_swap_backfill", f"weather:{swapped}")
    with story.step("backfill-discarded", RUN_LIMIT_S):
        launch(story, "weir_discard_backfill", f"weather:{discarded}")
    states = {row.id: row.state for row in backfills(settings, "weather")}
    assert states[swapped] == "swapped in"
    assert discarded not in states
    assert read_rows(settings.warehouse / "weather" / "daily_weather").height == 1089


def recomputed(days: tuple[int, int]) -> str:
    """A backfill of March from one day to the other, which is complete: its id."""
    first, end = (f"2013-03-{day:02}" for day in days)
    weir = str(Path(sys.executable).with_name("weir"))
    done = subprocess.run([weir, "backfill", "run", "weather", first, end], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.search(rf"{first.replace('-', '')}-{end.replace('-', '')}-\w+", done.stdout + done.stderr)[0]


def launch(story: Story, job: str, partition: str) -> None:
    """From the job's launchpad, to its success."""
    story.open(f"/locations/weir/jobs/{job}/playground")
    story.choose_partition(partition)
    story.button("Launch Run").click()
    story.text(re.compile("RUN_ENQUEUED")).wait_for()
    assert story.ended() == "Success"
