"""Metrics under Kafka Streams' names: what an epoch of a task adds, and readings of the last minute over many epochs.

Counts come from the operators through ``processor``; receipts carry them to the driver, whose ``RunMetrics`` keeps
them. Totals count from the driver's start, as in Kafka Streams; rates, averages and maxima are over the last minute.
Showing and storing readings belongs elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from weir.pipelines.tasks.freshness import Freshness

OVER_S = 60
TASK_CLOCK = "_stream_time"
"""The clock of a task's stream time: the greatest timestamp of all its input."""
DROPS = (
    "late_records",
    "null_keys",
    "null_values",
    "expired_records",
    "out_of_order_records",
    "invalid_timestamps",
    "dead_letters",
    "failed_records",
)
"""The counts that make up ``dropped-records``."""
_LATE = {"late_records": "late-record-drop", "expired_records": "expired-window-record-drop"}
"""Of these, the metrics of records that are late for a window, and of those too old for the store that they reach."""
_OF_NODES = {"process": "process", "suppression_emits": "suppression-emit"} | _LATE
THREAD, TASK, NODE, STATE, UPDATER = (
    f"stream-{group}-metrics" for group in ("thread", "task", "processor-node", "state", "state-updater")
)


@dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """What one epoch of one task adds."""

    records: int = 0
    """Rows of topics and edges."""
    lateness_ms: int = 0
    """How far each record was behind the task's stream time, summed over all records."""
    max_lateness_ms: int = 0
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Counts by node; ``process`` for a source, ``suppression_emits`` for a suppression."""
    buffers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The rows and bytes that a suppression holds now, by its store."""

    def __add__(self, later: EpochMetrics) -> EpochMetrics:
        """The sum of two batches of one epoch."""
        nodes = {name: Counter(self.nodes.get(name, {})) for name in (*self.nodes, *later.nodes)}
        for name, counts in later.nodes.items():
            nodes[name].update(counts)
        return EpochMetrics(
            records=self.records + later.records,
            lateness_ms=self.lateness_ms + later.lateness_ms,
            nodes=nodes,
            max_lateness_ms=max(self.max_lateness_ms, later.max_lateness_ms),
            buffers={**self.buffers, **later.buffers},
        )


def lateness(inputs: Iterable[pl.DataFrame], clocks: dict[str, int]) -> tuple[int, int]:
    """Sum and maximum of how far records are behind the task's stream time at their turn, in ms; advances the clock.

    Several inputs have their rows' turns in ``_offset``, as set by ``TaskProcessor``.
    """
    frames = [frame.select("_ts", "_offset") for frame in inputs if frame.height]
    if not frames:
        return 0, 0
    times = frames[0].get_column("_ts") if len(frames) == 1 else pl.concat(frames).sort("_offset").get_column("_ts")
    stream_time = times.cum_max()
    if TASK_CLOCK in clocks:
        stream_time = stream_time.clip(lower_bound=clocks[TASK_CLOCK])
    clocks[TASK_CLOCK] = int(stream_time[-1])
    behind = stream_time - times
    return int(behind.sum()), int(behind.max())  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The current value of one metric."""

    group: str
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    """``task-id``, and ``processor-node-id`` or ``store-id``."""
    value: float


class Sensor:
    """Values of the last minute, by second. ``now`` gives seconds; counting began at ``began``, or when it was made."""

    def __init__(self, now: Callable[[], float], began: float | None = None) -> None:
        self._now, self._began = now, now() if began is None else began
        self._seconds: deque[tuple[int, float, int, float]] = deque()
        self.total = self.last = 0.0

    def record(self, value: float, count: int = 1, maximum: float | None = None) -> None:
        """Add ``count`` values whose sum is ``value`` and whose greatest is ``maximum``."""
        second, maximum = int(self._now()), value if maximum is None else maximum
        self.total, self.last = self.total + value, value
        if self._seconds and self._seconds[-1][0] == second:
            _, values, counted, greatest = self._seconds.pop()
            value, count, maximum = value + values, count + counted, max(maximum, greatest)
        self._seconds.append((second, value, count, maximum))

    @property
    def rate(self) -> float:
        """The sum of the values per second."""
        return sum(value for _, value, _, _ in self._kept()) / max(1.0, min(OVER_S, self._now() - self._began))

    @property
    def count_rate(self) -> float:
        """The number of values per second."""
        return sum(count for _, _, count, _ in self._kept()) / max(1.0, min(OVER_S, self._now() - self._began))

    @property
    def average(self) -> float:
        """0 if there are no values."""
        counted = sum(count for _, _, count, _ in self._kept())
        return sum(value for _, value, _, _ in self._kept()) / counted if counted else 0.0

    @property
    def maximum(self) -> float:
        """0 if there are no values."""
        return max((maximum for *_, maximum in self._kept()), default=0.0)

    def _kept(self) -> Sequence[tuple[int, float, int, float]]:
        while self._seconds and self._seconds[0][0] <= self._now() - OVER_S:
            self._seconds.popleft()
        return self._seconds


class RunMetrics:
    """The metrics of a run, by task, node and store."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        began = now()
        self._sensors: dict[tuple[str, str, str, str], Sensor] = defaultdict(lambda: Sensor(now, began))
        self._remaining: dict[str, int] = {}
        self.commits = Sensor(now)
        """The duration of commits in ms."""
        self.commit_intervals = Sensor(now)
        """From commit to commit in ms, while records arrive."""
        self.freshness = Freshness(now)
        self._commits = 0

    def commit(self, seconds: float, at_ms: int, interval_s: float | None = None) -> None:
        """Note that a commit ended at ``at_ms`` and took ``seconds``.

        ``interval_s``: how long after the previous one it began, if records were there to be read all that time.
        """
        self.commits.record(seconds * 1000)
        self.freshness.committed(at_ms)
        if interval_s is not None:
            self.commit_intervals.record(interval_s * 1000)
        self._commits += 1

    def epoch(self, task: str, metrics: EpochMetrics, counts: Mapping[str, int]) -> None:
        """Note an accepted epoch of a task; ``counts`` are those of the task, ``EpochMetrics.nodes`` those of nodes."""
        self._sensors[TASK, task, "", "process"].record(metrics.records)
        self._sensors[TASK, task, "", "record-lateness"].record(
            metrics.lateness_ms, metrics.records, metrics.max_lateness_ms
        )
        self._sensors[TASK, task, "", "dropped-records"].record(sum(counts.get(name, 0) for name in DROPS))
        for count, name in _LATE.items():
            self._sensors[TASK, task, "", name].record(counts.get(count, 0))
        for node, found in metrics.nodes.items():
            for count, name in _OF_NODES.items():
                if count in found:
                    self._sensors[NODE, task, node, name].record(found[count])
        for store, (rows, size) in metrics.buffers.items():
            self._sensors[STATE, task, store, "suppression-buffer-count"].record(rows)
            self._sensors[STATE, task, store, "suppression-buffer-size"].record(size)

    def restoring(self, task: str, rows: int, remaining: int) -> None:
        """Note that a running restore has loaded ``rows`` and has about ``remaining`` to go."""
        sensor = self._sensors[TASK, task, "", "restore"]
        sensor.record(max(0.0, rows - sensor.total) if task in self._remaining else rows)
        self._remaining[task] = remaining

    def restored(self, task: str, rows: int) -> None:
        """Note that a restore has ended with ``rows`` in the task's stores."""
        self.restoring(task, rows, 0)
        del self._remaining[task]

    def readings(self) -> list[Reading]:
        """All metrics, by group and task."""
        found = [
            Reading(group=THREAD, name=name, value=value)
            for name, value in (
                ("commit-rate", self.commits.count_rate),
                ("commit-total", self._commits),
                ("commit-latency-avg", self.commits.average),
                ("commit-latency-max", self.commits.maximum),
                ("commit-interval-avg", self.commit_intervals.average),
                ("commit-interval-max", self.commit_intervals.maximum),
                *zip(("freshness-p50", "freshness-p99"), self.freshness.quantiles(0.5, 0.99) or (), strict=False),
                ("process-rate", self._sum("process", lambda sensor: sensor.rate)),
                ("process-total", self._sum("process", lambda sensor: sensor.total)),
            )
        ]
        found.append(Reading(group=UPDATER, name="active-restoring-tasks", value=len(self._remaining)))
        for (group, task, part, name), sensor in sorted(self._sensors.items()):
            tags = {"task-id": task} | ({"store-id" if group == STATE else "processor-node-id": part} if part else {})
            found += [
                Reading(group=group, name=f"{name}-{which}", tags=tags, value=value)
                for which, value in _shown(name, sensor)
            ]
        found += [
            Reading(group=TASK, name="restore-remaining-records-total", tags={"task-id": task}, value=rows)
            for task, rows in self._remaining.items()
        ]
        return found

    def _sum(self, name: str, value: Callable[[Sensor], float]) -> float:
        return sum(
            value(sensor) for (group, _, _, found), sensor in self._sensors.items() if group == TASK and found == name
        )


def _shown(name: str, sensor: Sensor) -> Iterator[tuple[str, float]]:
    if name == "record-lateness" or name.startswith("suppression-buffer-"):
        yield from (("avg", sensor.average), ("max", sensor.maximum))
    else:
        yield from (("rate", sensor.rate), ("total", sensor.total))
