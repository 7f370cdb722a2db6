"""The status of an application: what is committed comes from the commit log, whether and how it runs from the control
database, what is in doubt and in quarantine from the state folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import msgspec

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.errors import ApplicationLoadError, TopologyError, naming
from weir.pipelines.expectations import expectation_counts
from weir.pipelines.operations.actions import actions_of
from weir.pipelines.operations.doubts import doubts
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.positions import committed_positions, committed_totals
from weir.pipelines.operations.quarantine import quarantine_status
from weir.pipelines.operations.registry import reference_of, registered_application
from weir.pipelines.operations.sinks import known_sinks
from weir.pipelines.operations.text import duration, utc_text
from weir.pipelines.tasks.run_metrics import THREAD
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.engine.environment import FREE_DISK_RESERVE_BYTES
from weir.state.engine.instances import current_instance, task_folder
from weir.state.engine.views import StoreSize, store_sizes
from weir.state.errors import DiskFullError, TaskCorruptedError
from weir.state.full_disk import require_room
from weir.state.storage.places import disks, folder_at

UNWATCHED_S = 20.0
"""Dagster's sensors look every ten seconds, and a tick may take some of them."""


def application_status(settings: Settings, database: ControlDatabase, application: str) -> dict[str, Any]:
    """One application as plain values; counts are as of the newest commit, ``tasks``, ``metrics``, ``lag`` and
    throughput as of ``reported_at``."""
    newest, life = newest_commit(folder_at(settings.warehouse), application), database.application_status(application)
    totals = committed_totals(newest)
    metric = life.metric if life else None
    return {
        "application": application,
        "state": life.state if life else "unknown",
        "is_running": bool(life and life.is_running),
        "waits_for": life.waits_for or None if life else None,
        "full_disk": _full_disk(settings, application),
        "unwatched": unwatched(database, application, time.time()),
        "generation": newest.generation if newest else None,
        "committed_epoch": newest.epoch if newest else None,
        "committed_at": _time(newest.at_ms) if newest else None,
        "records_in": totals.get("records_in", 0),
        "late_records": totals.get("late_records", 0),
        "dead_letters": totals.get("dead_letters", 0),
        "failed_records": totals.get("failed_records", 0),
        "open_windows": totals.get("open_windows", 0),
        "expectations": [
            {"expectation": name, **asdict(counts), "failed_share": counts.failed_share}
            for name, counts in expectation_counts(totals).items()
        ],
        "positions": committed_positions(newest),
        "lag": metric.lag if metric else None,
        "reported_at": _time(metric.at_ms) if metric else None,
        "records_per_s": metric.records_per_s if metric and life and life.is_running else None,
        "commit_ms": metric.commit_ms if metric else None,
        "commit_ms_avg": metric.commit_ms_avg if metric else None,
        "commit_ms_max": metric.commit_ms_max if metric else None,
        "commits_per_s": metric.commits_per_s if metric else None,
        **_freshness(life.readings if life and life.is_running else ()),
        "host": life.host if life else None,
        "pid": life.pid if life else None,
        "started_at": _time(life.started_at_ms) if life else None,
        "ended_at": _time(life.ended_at_ms) if life else None,
        "error": naming(life.error, old=reference_of(settings, application)) if life and life.error else None,
        "in_doubt": [
            {
                "task": doubt.task,
                "store": doubt.store,
                "difference": doubt.difference,
                "found_at": _time(round(doubt.found_at_s * 1000)),
                "found_by": doubt.found_by,
            }
            for doubt in doubts(settings, application)
        ],
        "quarantine": asdict(quarantine_status(settings, application)),
        "tasks": [asdict(task) for task in life.tasks] if life else [],
        "sinks": list(life.sinks) if life else [],
        "actions": [
            {**asdict(action), "at": _time(action.at_ms), "brought": action.brought}
            for action in actions_of(database, application)
        ],
        "metrics": list(life.readings) if life else [],
    }


def _full_disk(settings: Settings, application: str) -> str | None:
    """That a run would wait for space now, or does: while the disk of the control database is full, it cannot say so
    there."""
    try:
        for folder in disks(folder_at(settings.warehouse), settings.state_dir):
            require_room(folder / application, f"application {application!r}", FREE_DISK_RESERVE_BYTES)
    except DiskFullError as error:
        return str(error)
    return None


def unwatched(database: ControlDatabase, application: str, now_s: float) -> str | None:
    """That Dagster's sensors have stopped looking at an application; None if they look, or never did."""
    at_ms = database.watched_at_ms(application)
    if at_ms is None or now_s - at_ms / 1000 <= UNWATCHED_S:
        return None
    at, ago = utc_text(datetime.fromtimestamp(at_ms / 1000, UTC)), duration(1000 * now_s - at_ms)
    return (
        f"Dagster's sensors looked last at {at}, {ago} ago: its daemon or its code server does not run or hangs; until "
        "both are started again, nothing is restarted, repaired or reported there"
    )


def _freshness(readings: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """How far apart commits are while records arrive, and how old those are when they are committed, in ms."""
    of_run = {reading["name"]: reading["value"] for reading in readings if reading["group"] == THREAD}
    return {
        "commit_interval_ms": of_run.get("commit-interval-avg") or None,
        "freshness_p50_ms": of_run.get("freshness-p50"),
        "freshness_p99_ms": of_run.get("freshness-p99"),
    }


def application_detail(settings: Settings, database: ControlDatabase, application: str) -> dict[str, Any]:
    """``application_status`` and, as plain values, the newest commit, the stores on this host, the snapshots and names
    of the tasks, and the restores under way."""
    newest = newest_commit(folder_at(settings.warehouse), application)
    found = application_status(settings, database, application)
    names = stored_names(settings, application)
    committed = newest.tasks if newest else {}
    tasks = []
    for task in found["tasks"]:
        name = names.get(task["task"])
        commit = committed.get(name) if name else None
        snapshot = commit.snapshot if commit else None
        tasks.append(
            {
                **task,
                "name": name,
                "committed_state": str(commit.state) if commit and commit.state else None,
                "snapshot": str(snapshot.state) if snapshot else None,
                "rows_since_snapshot": commit.rows_since_snapshot if commit else None,
            }
        )
    return found | {
        "commit_reason": newest.reason if newest else None,
        "rows_between_tasks": sum(blob.rows - blob.taken for blob in newest.pending_blobs) if newest else 0,
        "tasks": tasks,
        "sinks": [msgspec.to_builtins(sink) for sink in known_sinks(settings, application)],
        "stores": _stores(settings, newest, application),
        "restores": [
            {"task": task["task"], "reason": task["reason"]} for task in tasks if task["status"] == "restoring"
        ],
    }


def stored_names(settings: Settings, application: str) -> dict[str, str]:
    """The stored name of each task that a commit knows, by its id; empty if the program cannot be loaded."""
    newest = newest_commit(folder_at(settings.warehouse), application)
    try:
        topology = registered_application(settings, application).topology
    except (OperationError, ApplicationLoadError, TopologyError):
        return {}
    found = {}
    for name in newest.tasks if newest else ():
        with suppress(KeyError):  # a task of another topology
            found[str(topology.task_of(name))] = name
    return found


def _stores(settings: Settings, newest: CommitRecord | None, application: str) -> list[dict[str, Any]]:
    """Each store that the newest commit names, with the tasks, rows and bytes on this host; of a task that is not here,
    or cannot be read at the moment, nothing is counted."""
    if newest is None or newest.topology is None:
        return []
    totals: dict[str, dict[str, Any]] = {}
    sizes = {name: task_sizes(settings, application, name) for name in newest.tasks}
    for stored_name, stores in newest.topology.stores.items():
        of_tasks = [found for name, found in sizes.items() if name.rpartition("_")[0] == stored_name]
        for store in stores:
            here = [found[store] for found in of_tasks if store in found]
            totals[store] = {
                "store": store,
                "tasks": len(of_tasks),
                "here": len(here),
                "rows": sum(size.rows for size in here) if here else None,
                "bytes": sum(size.bytes for size in here) if here else None,
            }
    return list(totals.values())


def task_sizes(settings: Settings, application: str, name: str) -> Mapping[str, StoreSize]:
    """By store, what a task, given by its stored name, holds on this host; empty if it is not here, or cannot be read
    at the moment."""
    try:
        instance = current_instance(task_folder(settings.state_dir, application, name))
        return {} if instance is None else store_sizes(instance)
    except TaskCorruptedError:
        return {}


def _time(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
