"""Shows the progress of runs, and what a command waits for: live on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from weir.pipelines.cli.render import notices

if TYPE_CHECKING:
    from weir.pipelines.spark.progress import Progress

LINE_EVERY_S = 5.0


class TerminalWarnings(logging.Handler):
    """Prints warnings above a live progress bar, one line each; their stack traces are in the log file."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        notices.print(f"{record.levelname.lower()}: {record.getMessage()}", markup=False, soft_wrap=True)


@contextmanager
def counting(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yields ``show(done, total, text)``, to be called whenever something changes."""
    if notices.is_terminal:
        bar = ProgressBar(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=notices,
        )
        task = bar.add_task(title, total=None, text="")
        with bar:
            yield lambda done, total, text: bar.update(task, completed=done, total=total or None, text=text)
        return
    printed, at = "", float("-inf")

    def line(done: int, total: int, text: str) -> None:
        nonlocal printed, at
        news = f"{title}: {done:,} of {total:,} records, {text}".removesuffix(", ") if total else f"{title}: {text}"
        if news != printed and time.monotonic() - at >= LINE_EVERY_S:
            printed, at = news, time.monotonic()
            notices.print(news, markup=False, soft_wrap=True)

    yield line


@contextmanager
def waiting(title: str, text: str) -> Iterator[Callable[[str], None]]:
    """Says what takes long where nothing can be counted; yields ``say(text)``, to be called with what comes next."""
    if notices.is_terminal:
        with notices.status(escape(f"{title}: {text}")) as status:
            yield lambda news: status.update(escape(f"{title}: {news}"))
        return
    began, is_over = time.monotonic(), threading.Event()

    def say(news: str) -> None:
        nonlocal text
        text = news

    def tell() -> None:
        while not is_over.wait(LINE_EVERY_S):
            notices.print(f"{title}: {text}, {time.monotonic() - began:.0f} s", markup=False, soft_wrap=True)

    teller = threading.Thread(target=tell, name="waiting", daemon=True)
    teller.start()
    try:
        yield say
    finally:
        is_over.set()
        teller.join()


@contextmanager
def following(title: str) -> Iterator[Callable[[Progress], None]]:
    """A run's ``on_progress``: records processed, records known to be waiting, and throughput."""
    with counting(title) as show:

        def on_progress(progress: Progress) -> None:
            pace = f"{progress.records_per_s:,.0f} records/s, " if progress.records_per_s else ""
            show(
                progress.records_in,
                progress.records_in + progress.lag,
                progress.message or (f"{pace}epoch {progress.epoch}" if progress.records_in else progress.state),
            )

        yield on_progress
