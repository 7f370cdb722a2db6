"""Weir's definitions as ``dagster dev`` serves them over a fresh folder, and a browser that shows them."""

import shutil
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.browser.story import Story
from tests.waiting import wait_for
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.pipelines.cli.dagster_ui import free_port, prepare_home
from weir.pipelines.cli.keeper import start_kept

START_LIMIT_S = 120.0
END_LIMIT_S = 60.0
VIEW = {"width": 1500, "height": 1000}
STILL = """
addEventListener("DOMContentLoaded", () => {
  const still = document.createElement("style");
  still.textContent = "*, ::before, ::after { animation-iteration-count: 1 !important }";
  document.head.append(still);
});
"""
"""Spinners and pulsing dots would occupy one of two cores for as long as a run takes."""
DEQUEUE_AT_ONCE = """
run_coordinator:
  module: dagster._core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    monkeypatch.setenv("WEIR_DIR", str(tmp_path / "weir"))
    monkeypatch.setenv("WEIR_SLOTS", "2")
    return Settings.load()


@pytest.fixture
def ui(settings, pytestconfig, monkeypatch) -> Iterator[str]:
    """The address of a UI with its daemon; afterwards neither these nor the runs that they started are left."""
    prepare_home(settings.dagster_home)
    monkeypatch.setenv("DAGSTER_HOME", str(settings.dagster_home))
    with (settings.dagster_home / "dagster.yaml").open("a") as instance:
        instance.write(DEQUEUE_AT_ONCE)
    url = f"http://127.0.0.1:{(port := free_port(0))}"
    log = settings.logs / "dagster.log"

    def is_up() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=5):
                return True
        except OSError:
            return False

    with broker_for(settings):
        workspace = str(pytestconfig.rootpath / "workspace.yaml")
        server = start_kept(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "dagster",
                "dev",
                "-w",
                workspace,
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ],
            log=log,
            environment={},
        )
        try:
            wait_for(is_up, "the UI is up", START_LIMIT_S)
            yield url
        finally:
            server.stdin.close()
            server.wait(END_LIMIT_S)


@pytest.fixture
def page(chromium) -> Iterator[Page]:
    """A browser window that closes with the test, or with this process."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=VIEW, timezone_id="UTC", locale="en-US", reduced_motion="reduce")
        page.add_init_script(STILL)
        yield page
        browser.close()


@pytest.fixture
def chromium() -> str:
    """The system's Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium here: install the package chromium")
    return found


@pytest.fixture
def story(page, ui, pytestconfig) -> Story:
    """Screenshots of its steps replace those in ``build/screenshots``."""
    folder = pytestconfig.rootpath / "build" / "screenshots"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Story(page, ui, folder)
