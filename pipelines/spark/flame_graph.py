"""Samples the stacks of a thread, and draws them as a flame graph: a page that needs nothing but a browser.

Loaded by profiled runs alone. Only the thread that asks is sampled, from within, so neither root nor the right to look
into other processes is needed; calls into C count for whoever makes them.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyinstrument import Profiler
from pyinstrument.renderers import HTMLRenderer
from pyinstrument.session import Session

INTERVAL_S = 0.002


class Sampling:
    """The stacks of what runs between ``begin`` and ``end``, as often as these are called, on the same thread. They are
    added up as soon as it ends, so many short samplings need no more memory than a few."""

    def __init__(self) -> None:
        self._began_s, self._samples, self._cpu_s = time.time(), 0, 0.0
        self._seconds: dict[tuple[str, ...], float] = defaultdict(float)
        self._profiler = Profiler(interval=INTERVAL_S, async_mode="disabled")

    def begin(self) -> None:
        self._profiler.start()

    def end(self) -> None:
        session = self._profiler.stop()
        self._profiler.reset()  # type: ignore[no-untyped-call]
        for stack, seconds in session.frame_records:
            self._seconds[tuple(stack)] += seconds
        self._samples, self._cpu_s = self._samples + session.sample_count, self._cpu_s + session.cpu_time

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Samples the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def result(self) -> dict[str, Any]:
        """What was sampled, as ``page`` takes it: plain values, each stack once."""
        result: dict[str, Any] = Session(
            frame_records=[(list(stack), seconds) for stack, seconds in sorted(self._seconds.items())],
            start_time=self._began_s,
            duration=sum(self._seconds.values()),
            min_interval=INTERVAL_S,
            max_interval=INTERVAL_S,
            sample_count=self._samples,
            start_call_stack=[""],
            target_description="",
            cpu_time=self._cpu_s,
            sys_path=sys.path,
            sys_prefixes=Session.current_sys_prefixes(),
        ).to_json()
        return result


def page(result: dict[str, Any], title: str) -> str:
    """The HTML page of what was sampled in this or another process."""
    html: str = HTMLRenderer(resample_interval=0).render(Session.from_json({**result, "target_description": title}))
    return html
