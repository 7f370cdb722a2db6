"""Metrics under Kafka Streams' names: readings over many epochs of a run. What an epoch adds is in ``metrics``.

Totals count from the driver's start, as in Kafka Streams; rates, averages and extremes are over the last minute.
Showing and storing readings belongs elsewhere.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from weir.pipelines.expectations import OUTCOMES, expectation_counts
from weir.pipelines.tasks.freshness import Freshness
from weir.pipelines.tasks.metrics import EpochMetrics
from weir.pipelines.tasks.sensors import Sensor
from weir.state.engine.figures import Figures, Values
from weir.state.stopwatch import Activity, Work

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
_OF_NODES_AT_DEBUG = {"process": "process", "suppression_emits": "suppression-emit"}
THREAD, TASK, NODE, STATE, UPDATER, EXPECTATION = (
    f"stream-{group}-metrics" for group in ("thread", "task", "processor-node", "state", "state-updater", "expectation")
)
_PART = {NODE: "processor-node-id", STATE: "store-id", EXPECTATION: "expectation"}
"""What the tag is called that says which part of a task a metric of a group is about."""
PACE = "process-rate"
"""How many records a second are read, by a task or by all."""
USED_BYTES = "map-used-bytes"
"""How much of its LMDB file a task's stores use."""
ROWS = "num-keys"
"""How many rows a task's stores have, or one of them."""
_BUSY, _APPLY, _FORWARD = "busy", "apply-latency", "forward"
ACTIVITIES = tuple(each for each in Activity if each is not Activity.WAITING)
"""What the time of a task goes into, each with the share of the last minute that it took."""
_OVERTIME, _BUFFER = "intermediate-result-suppression-overtime", "suppression-buffer-"
_LATENESS = "record-lateness"


class MetricsLevel(StrEnum):
    """How much is measured: at ``DEBUG`` also what each node and store does."""

    INFO = "info"
    DEBUG = "debug"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The current value of one metric."""

    group: str
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    """``task-id``, and ``processor-node-id``, ``store-id`` or ``expectation``."""
    value: float


class RunMetrics:
    """The metrics of a run, by task, node and store."""

    def __init__(self, now: Callable[[], float] = time.monotonic, level: MetricsLevel = MetricsLevel.INFO) -> None:
        began = now()
        self._is_debug = level is MetricsLevel.DEBUG
        self._sensors: dict[tuple[str, str, str, str], Sensor] = defaultdict(lambda: Sensor(now, began))
        self._gauges: dict[tuple[str, str, str, str], float] = {}
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
        self._sensors[TASK, task, "", _LATENESS].record_all(metrics.lateness_ms)
        dropped = sum([count for name, count in counts.items() if name in DROPS])
        for name, value in (
            ("dropped-records", dropped),
            *((name, counts.get(count, 0)) for count, name in _LATE.items()),
        ):
            sensor = self._sensors[TASK, task, "", name]
            if value:
                sensor.record(value)
        for expectation, judged in expectation_counts(counts).items():
            for outcome in OUTCOMES:
                sensor = self._sensors[EXPECTATION, task, expectation, f"{outcome}-records"]
                if value := getattr(judged, outcome):
                    sensor.record(value)
        names = _LATE | (_OF_NODES_AT_DEBUG if self._is_debug else {})
        for node, found in metrics.nodes.items():
            for count, name in names.items():
                if count in found:
                    self._sensors[NODE, task, node, name].record(found[count])
        for store, records in metrics.expired_of.items():
            self._sensors[STATE, task, store, _LATE["expired_records"]].record(records)
        for node, values in metrics.overtime_ms_of.items():
            self._sensors[NODE, task, node, _OVERTIME].record_all(values)
        if metrics.figures is not None:
            self._note_figures(task, metrics.figures)
        if self._is_debug:
            for node, values in metrics.lateness_ms_of.items():
                self._sensors[NODE, task, node, _LATENESS].record_all(values)
            for store, (rows, size) in metrics.buffers.items():
                self._sensors[STATE, task, store, f"{_BUFFER}count"].record(rows)
                self._sensors[STATE, task, store, f"{_BUFFER}size"].record(size)
            for store, calls in metrics.calls.items():
                for call, calls_made in calls.items():
                    self._sensors[STATE, task, store, call].record(calls_made)
            for store, took in metrics.call_ms.items():
                for call, values in took.items():
                    self._sensors[STATE, task, store, f"{call}-latency"].record_all(values)

    def worked(self, task: str, seconds: float) -> None:
        """Note that an accepted epoch has kept the slot of a task busy for so long."""
        self._sensors[TASK, task, "", _BUSY].record(seconds)

    def work(self, task: str, work: Work) -> None:
        """Note where the time of an accepted epoch of a task has gone."""
        for activity in ACTIVITIES:
            if seconds := work.seconds.get(activity):
                self._sensors[TASK, task, "", activity].record(seconds)
        for node, of_node in work.nodes.items():
            self._sensors[NODE, "", node, _BUSY].record(of_node.seconds)
            self._sensors[NODE, "", node, _FORWARD].record(of_node.rows)

    def busy_s(self, task: str) -> float:
        """How much of the last minute epochs of the task have taken in its slot."""
        return self._sensors[TASK, task, "", _BUSY].sum

    def state_bytes(self, task: str) -> int:
        """How much of its LMDB file the task's stores use; zero as long as it has not been heard."""
        return round(self._gauges.get((STATE, task, "", USED_BYTES), 0))

    def work_s(self, task: str, lag: int, seconds: float) -> float:
        """For how long a task will keep its slot busy: over so many ``seconds`` and with the ``lag`` that waits, if it
        goes on as over the last minute."""
        busy, records = self._sensors[TASK, task, "", _BUSY], self._sensors[TASK, task, "", "process"]
        return busy.rate * seconds + (lag * busy.sum / records.sum if records.sum else 0.0)

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
                ("commit-ratio", self.commits.rate / 1000),
                ("commit-interval-avg", self.commit_intervals.average),
                ("commit-interval-max", self.commit_intervals.maximum),
                *zip(("freshness-p50", "freshness-p99"), self.freshness.quantiles(0.5, 0.99) or (), strict=False),
                (PACE, self._sum("process", lambda sensor: sensor.rate)),
                ("process-total", self._sum("process", lambda sensor: sensor.total)),
            )
        ]
        found.append(Reading(group=UPDATER, name="active-restoring-tasks", value=len(self._remaining)))
        for (group, task, part, name), sensor in sorted(self._sensors.items()):
            tags = _tags(group, task, part)
            found += [
                Reading(group=group, name=f"{name}-{which}", tags=tags, value=value)
                for which, value in _shown(name, sensor)
            ]
        found += [
            Reading(group=TASK, name="applied-records-per-s", tags={"task-id": task}, value=value)
            for task, value in sorted(self._applied_per_s().items())
        ]
        found += [
            Reading(group=group, name=name, tags=_tags(group, task, part), value=value)
            for (group, task, part, name), value in sorted(self._gauges.items())
        ]
        found += [
            Reading(group=TASK, name="restore-remaining-records-total", tags={"task-id": task}, value=rows)
            for task, rows in self._remaining.items()
        ]
        return found

    def _note_figures(self, task: str, figures: Figures) -> None:
        self._sensors[TASK, task, "", _APPLY].record_all(figures.apply_ms)
        self._sensors[TASK, task, "", "settle-latency"].record_all(figures.commit_ms)
        for name, value in (
            ("map-size-bytes", figures.map_bytes),
            (USED_BYTES, figures.used_bytes),
            ("num-readers", figures.readers),
        ):
            self._gauges[STATE, task, "", name] = value
        self._gauges[TASK, task, "", ROWS] = figures.rows
        if not self._is_debug:
            return
        for store, values in figures.apply_ms_of.items():
            self._sensors[STATE, task, store, "apply-latency"].record_all(values)
        for store, values in figures.commit_ms_of.items():
            self._sensors[STATE, task, store, "commit"].record_all(_ones(values))
            self._sensors[STATE, task, store, "commit-latency"].record_all(values)
        for store, figure in figures.stores.items():
            self._gauges[STATE, task, store, ROWS] = figure.rows
            self._gauges[STATE, task, store, "num-pages"] = figure.pages
            self._gauges[STATE, task, store, "depth"] = figure.depth

    def _applied_per_s(self) -> dict[str, float]:
        """By task, how many of its records one second of writing to its stores covers; of those that have written."""
        found = {}
        for (group, task, _, name), sensor in self._sensors.items():
            records = self._sensors.get((TASK, task, "", "process"))
            if group == TASK and name == _APPLY and records is not None and sensor.rate and records.rate:
                found[task] = 1000 * records.rate / sensor.rate
        return found

    def _sum(self, name: str, value: Callable[[Sensor], float]) -> float:
        return sum(
            value(sensor) for (group, _, _, found), sensor in self._sensors.items() if group == TASK and found == name
        )


def _tags(group: str, task: str, part: str) -> dict[str, str]:
    return ({"task-id": task} if task else {}) | ({_PART[group]: part} if part else {})


def _ones(values: Values) -> Values:
    """As many values of 1."""
    return Values(count=values.count, total=values.count, least=1, greatest=1)


def _shown(name: str, sensor: Sensor) -> Iterator[tuple[str, float]]:
    if name == _OVERTIME:
        yield from (("min", sensor.minimum), ("avg", sensor.average))
    elif name == _BUSY or name in ACTIVITIES:
        yield "ratio", sensor.rate
    elif name.startswith(_BUFFER):
        yield from (("current", sensor.last), ("avg", sensor.average), ("max", sensor.maximum))
    elif name == _LATENESS or name.endswith("-latency"):
        yield from (("avg", sensor.average), ("max", sensor.maximum))
    else:
        yield from (("rate", sensor.rate), ("total", sensor.total))
