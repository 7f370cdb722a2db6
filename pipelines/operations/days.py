"""The days of event time that a backfill can be asked for: those that the topics hold, or else the outputs' rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from weir.infra.kafka.admin import KafkaAdmin, KafkaAdminError
from weir.infra.kafka.broker import broker_of
from weir.infra.settings import Settings
from weir.pipelines.application import Application
from weir.pipelines.backfill.outputs import DayOutput, day_outputs
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.operations.positions import committed_positions
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import file_actions
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at, is_table, table_at

ANSWER_LIMIT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class HeldDays:
    """Days without a gap, within those that were asked about."""

    days: Days | None
    """None if there is no record or row of them."""
    is_of_topics: bool
    """Whether the brokers have said so, so that there is nothing to read of other days."""


def held_days(application: Application, settings: Settings, newest: CommitRecord, within: Days) -> HeldDays:
    """From the earliest to the latest day that the topics hold records of.

    While no broker answers, or where a program takes the time of records from elsewhere than brokers do, they are those
    that the outputs have rows of. Nothing is read but the brokers' lists and the tables' logs.
    """
    times = _topic_times(application, settings, newest)
    if times is not None:
        return HeldDays(days=_days(times, within), is_of_topics=True)
    outputs, folder = day_outputs(application.topology).swapped, folder_at(settings.warehouse) / application.id
    return HeldDays(
        days=_days([each for output in outputs for each in _row_times(folder, output)], within), is_of_topics=False
    )


def _topic_times(application: Application, settings: Settings, newest: CommitRecord) -> list[int] | None:
    topics = application.topology.topics()
    if not all(application.topology.source(topic).timestamp.is_records_own for topic in topics):
        return None
    found = broker_of(settings)
    if found is None:
        return None
    bootstrap_servers, settings = found
    positions = committed_positions(newest, topics)
    partitions = [(topic, number) for topic in topics for number in positions[topic]]
    try:
        ranges = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S).time_ranges(partitions)
    except KafkaAdminError:
        return None
    return [time_ms for ends in ranges.values() for time_ms in ends]


def _row_times(app_folder: Folder, output: DayOutput) -> list[int]:
    """The least and the greatest time that the output's files are listed with."""
    folder = app_folder / output.table
    if not is_table(folder):
        return []
    ends = file_actions(table_at(folder), ranges=[output.column]).select(
        pl.min(f"min.{output.column}"), pl.max(f"max.{output.column}")
    )
    known = ends.select(pl.col(pl.Datetime).dt.epoch("ms")).row(0) if not ends.is_empty() else ()
    return [time_ms for time_ms in known if time_ms is not None]


def _days(times_ms: Iterable[int], within: Days) -> Days | None:
    known = list(times_ms)
    if not known or max(known) < within.start_ms or min(known) >= within.end_ms:
        return None
    found = Days.of_ms(max(min(known), within.start_ms), min(max(known), within.end_ms - 1))
    return Days(first=found.first, end=found.end + timedelta(days=1))
