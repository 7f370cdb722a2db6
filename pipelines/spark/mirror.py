"""The committed positions as a consumer group's offsets, for lag tools that know consumer groups only.

Off the hot path: a commit hands its positions over and goes on, the newest are sent, and a failure costs a log line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from threading import Condition, Thread
from typing import Protocol

from infra.kafka.admin import KafkaAdminError
from pipelines.spark.planner import TopicPartition

log = logging.getLogger("weir.driver")

LOG_EVERY_S = 30.0


class Groups(Protocol):
    """Consumer groups; ``infra.kafka.admin.KafkaAdmin`` fits."""

    def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...


class OffsetMirror:
    """Sends positions to one group, in a thread of its own, until it is closed."""

    def __init__(self, groups: Groups, group: str) -> None:
        self._groups, self._group = groups, group
        self._changed = Condition()
        self._waiting: Mapping[TopicPartition, int] | None = None
        self._is_closed = False
        self._log_after = 0.0
        self._thread = Thread(target=self._send, name="offset mirror", daemon=True)
        self._thread.start()

    def __call__(self, positions: Mapping[TopicPartition, int]) -> None:
        """Send these; those that are still waiting are passed over."""
        with self._changed:
            self._waiting = positions
            self._changed.notify()

    def close(self) -> None:
        """Send what waits, once, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._is_closed)
                positions, self._waiting = self._waiting, None
            if positions is None:
                return
            try:
                self._groups.set_group_offsets(self._group, positions)
            except KafkaAdminError as error:
                if time.monotonic() >= self._log_after:
                    self._log_after = time.monotonic() + LOG_EVERY_S
                    log.warning("the positions did not reach consumer group %r: %s; the run goes on, and the next "
                                "commit sends its own", self._group, error)
