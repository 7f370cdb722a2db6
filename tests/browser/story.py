"""An operator's steps in the Dagster UI, each with a screenshot; elements are found by the text that people read."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Locator, Page, TimeoutError, expect

CHOICES, CHOICE_LIMIT_MS = 4, 15_000
ENDED = re.compile("^(Success|Failure|Canceled)$")


class Story:
    """One window and its screenshots, numbered in the order of the steps."""

    def __init__(self, page: Page, url: str, folder: Path) -> None:
        self.page, self._url, self._folder, self._steps = page, url, folder, 0

    @contextmanager
    def step(self, name: str, limit_s: float = 30.0) -> Iterator[None]:
        """No wait within takes longer than ``limit_s``; a screenshot shows its end, or how it failed."""
        self.page.set_default_timeout(limit_s * 1000)
        expect.set_options(timeout=limit_s * 1000)
        self._steps += 1
        try:
            yield
        except BaseException:
            self.picture(f"{name}-failed")
            raise
        self.picture(name)

    def picture(self, name: str) -> None:
        self.page.screenshot(path=self._folder / f"{self._steps:02}-{name}.png")

    def open(self, path: str) -> None:
        self.page.goto(f"{self._url}{path}")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name).first

    def text(self, text: str | re.Pattern[str]) -> Locator:
        return self.page.get_by_text(text, exact=isinstance(text, str)).first

    def open_launched_run(self) -> None:
        """Open the run that the button just launched, as the UI names it."""
        launched = self.text(re.compile(r"Launched run \w+")).inner_text()
        run = re.search(r"Launched run (\w+)", launched)
        assert run is not None
        self.page.get_by_role("link", name="Runs").first.click()
        self.page.get_by_role("link", name=run[1]).first.click()
        self.text(re.compile("RUN_ENQUEUED")).wait_for()

    def choose_partition(self, partition: str) -> None:
        """In the launchpad. Its list is redrawn as partitions arrive, so typed text may get lost once or twice."""
        field, chosen = self.page.get_by_placeholder("Partition"), self.text(f"partition: {partition}")
        for _ in range(CHOICES):
            try:
                field.fill(partition, timeout=CHOICE_LIMIT_MS)
                self.page.get_by_role("menuitem", name=partition).first.click(timeout=CHOICE_LIMIT_MS)
                return chosen.wait_for(timeout=CHOICE_LIMIT_MS)
            except TimeoutError:
                self.page.reload()
        raise AssertionError(f"the launchpad did not take partition {partition}")

    def ended(self) -> str:
        """How the run on the page ended; waits until it has."""
        return self.text(ENDED).inner_text()
