"""An application as Dagster knows it: where its program is, and the names of its assets, job and partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property

import dagster as dg

from weir.orchestration.advice import dagster_name, ingest_job_name
from weir.orchestration.on_lag import OnLag
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.application import Application
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.outbox import outbox_name, sink_of
from weir.state.commit.upserts import shown_name
from weir.state.types import CHANGELOG_FOLDER, TableSpec

FIRST_DAY = date(2020, 1, 1)
OWN_ASSETS = ("ingest", "backfill", "compaction", "checkpoints", "positions")
"""The last part of the keys of an application's assets that are no tables."""
TAG_CHARACTERS = 63
"""The most that Dagster allows in an asset's tag."""
NO_RETRIES = {"dagster/max_retries": "0"}
"""On the runs of ingests: where a driver was killed, a sensor starts the next run, and Dagster would start another."""
TASKS = dg.DynamicPartitionsDefinition(name="weir_tasks")
"""One partition per task of all applications (``shop:0_3``); the commits sensor keeps them in step with commits."""
BACKFILLS = dg.DynamicPartitionsDefinition(name="weir_backfills")
"""One partition per backfill that is not swapped in (``shop:20260302-20260309-1a2b3c``); runs that make, list,
swap or discard backfills keep them in step."""


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """The names of everything in Dagster that belongs to one application."""

    application: Application
    reference: str
    """``module:attribute``, from which drivers load it."""
    import_from: Sequence[str] = ()
    """The folders where drivers look for modules first: those of the code location."""
    topics: Mapping[str, dg.AssetKey]
    """The asset of each source topic."""
    topic_assets: Sequence[dg.AssetsDefinition] = ()
    """Those among them that something here fills."""
    first_day: date = FIRST_DAY
    """No earlier day of event time is added to those that are offered for backfills."""
    end_day: date | None = None
    """Nor this one or a later one; None for today."""
    unwatched: Collection[str] = ()
    """Sensors and schedules that leave the application alone, by name without ``weir_``."""
    owners: Sequence[str] = ()
    """Of its assets, and of the jobs and sensors that are for it: e-mail addresses, or ``team:name``."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    on_lag: OnLag = field(default_factory=OnLag)

    @property
    def id(self) -> str:
        return self.application.id

    @cached_property
    def name(self) -> str:
        """The id as it appears in the names of ops, jobs and the asset group, which may not contain a dash."""
        return dagster_name(self.id)

    @property
    def tags(self) -> dict[str, str]:
        """On the application's assets and runs."""
        return application_tags(self.id)

    @property
    def ingest_op(self) -> str:
        """The name of the ingest's op, under which a run's configuration addresses it."""
        return f"{self.name}_ingest"

    @property
    def ingest_job(self) -> str:
        """The name of the job that runs the ingest."""
        return ingest_job_name(self.id)

    @cached_property
    def ingest(self) -> dg.AssetKey:
        return dg.AssetKey([self.id, "ingest"])

    @cached_property
    def backfill(self) -> dg.AssetKey:
        return dg.AssetKey([self.id, "backfill"])

    @cached_property
    def compaction(self) -> dg.AssetKey:
        return dg.AssetKey([self.id, "compaction"])

    @cached_property
    def checkpoints(self) -> dg.AssetKey:
        return dg.AssetKey([self.id, "checkpoints"])

    @cached_property
    def positions(self) -> dg.AssetKey:
        return dg.AssetKey([self.id, "positions"])

    @cached_property
    def table_specs(self) -> Mapping[str, TableSpec]:
        """Every Delta table that commits write, by its path below the application's folder."""
        return {spec.name: spec for spec in application_tables(self.application.topology)}

    @cached_property
    def tables(self) -> Mapping[str, dg.AssetKey]:
        """The asset of each table: outputs under their own names (``output/<name>`` if that is the name of another
        asset), ``changelog/<store>``, ``sink/<sink>``, ``dead_letters``."""

        def path(table: str) -> list[str]:
            if (sink := sink_of(table)) is not None:
                return ["sink", sink]
            if table == DEAD_LETTERS.name:
                return ["dead_letters"]
            if shown_name(table) in (*OWN_ASSETS, "dead_letters"):
                return ["output", shown_name(table)]
            return shown_name(table).replace(CHANGELOG_FOLDER, "changelog", 1).split("/")

        return {name: dg.AssetKey([self.id, *path(name)]) for name in self.table_specs}

    @cached_property
    def produced(self) -> Sequence[dg.AssetKey]:
        """What a run of the ingest brings up to date: the ingest, and its tables."""
        return (self.ingest, *self.tables.values())

    @cached_property
    def assets(self) -> frozenset[dg.AssetKey]:
        """All of its own, not the topics."""
        return frozenset((*self.produced, self.backfill, self.compaction, self.checkpoints, self.positions))

    @cached_property
    def outputs(self) -> Mapping[str, dg.AssetKey]:
        """The assets of the output tables only."""
        return {spec.name: self.tables[spec.name] for spec in self.application.topology.table_specs()}

    @cached_property
    def sinks(self) -> Mapping[str, dg.AssetKey]:
        """The asset of each sink outside the warehouse, by the sink's name."""
        return {sink.name: self.tables[outbox_name(sink.name)] for sink in self.application.topology.outside_sinks}

    @cached_property
    def day_partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition per day that a backfill can be asked for; the commits sensor adds them."""
        return dg.DynamicPartitionsDefinition(name=f"{self.id}_days")

    @cached_property
    def task_partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition per task (``0_3``), for its checkpoints; in step with ``TASKS``."""
        return dg.DynamicPartitionsDefinition(name=f"{self.id}_checkpoints")

    def partition(self, part: str) -> str:
        """How ``TASKS`` and ``BACKFILLS`` name a task or a backfill of the application."""
        return f"{self.id}:{part}"


def owners_of(applications: Sequence[Supervised]) -> list[str] | None:
    """The owners of what is for all of them; None if there are none, since Dagster warns of an empty list."""
    return sorted({owner for each in applications for owner in each.owners}) or None


def application_tags(id_: str) -> dict[str, str]:
    """On the assets and runs of the application with that id."""
    return {"weir/application": id_[:TAG_CHARACTERS]}
