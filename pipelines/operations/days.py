"""The days of event time that a backfill can be asked for: those of the topics' records and of the outputs' rows."""

from __future__ import annotations

from collections.abc import Collection
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


def held_days(application: Application, settings: Settings, newest: CommitRecord, within: Days) -> Days | None:
    """From the earliest to the latest day, among those ``within``, of the topics' records and of the outputs' rows;
    None if there are none.

    Of a topic's partition, the brokers tell the times of the first record and of the latest; earlier ones behind the
    first are known by their rows. Rows alone count while no broker answers, and where a program takes the time of
    records from elsewhere than brokers do. Nothing is read but the brokers' lists and the tables' logs.
    """
    outputs, folder = day_outputs(application.topology).swapped, folder_at(settings.warehouse) / application.id
    times = _topic_times(application, settings, newest)
    return _days([*times, *(each for output in outputs for each in _row_times(folder, output))], within)


def _topic_times(application: Application, settings: Settings, newest: CommitRecord) -> list[int]:
    topics = application.topology.topics()
    if not all(application.topology.source(topic).timestamp.is_records_own for topic in topics):
        return []
    found = broker_of(settings)
    if found is None:
        return []
    bootstrap_servers, settings = found
    positions = committed_positions(newest, topics)
    partitions = [(topic, number) for topic in topics for number in positions[topic]]
    try:
        ranges = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S).time_ranges(partitions)
    except KafkaAdminError:
        return []
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


def _days(known: Collection[int], within: Days) -> Days | None:
    if not known or max(known) < within.start_ms or min(known) >= within.end_ms:
        return None
    found = Days.of_ms(max(min(known), within.start_ms), min(max(known), within.end_ms - 1))
    return Days(first=found.first, end=found.end + timedelta(days=1))
