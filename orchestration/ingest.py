"""An application's ingest and the tables that come out of it, as assets that one supervised driver produces."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG  # has no public name
from dagster._core.definitions.unresolved_asset_job_definition import (  # has no public name
    UnresolvedAssetJobDefinition as AssetJob,
)
from dagster._core.errors import DagsterPipesExecutionError  # has no public name
from pydantic import Field

from weir.infra.control import ControlDatabase, ControlDatabaseError
from weir.infra.process import end_with
from weir.infra.settings import Settings
from weir.orchestration.commits import keep_partitions_in_step, news
from weir.orchestration.owner import owner_of
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.state.changelog.rows import CHANGELOG_FOLDER
from weir.state.types import TableSpec


class IngestConfig(dg.Config):
    """How long the driver runs."""

    until_caught_up: bool = Field(
        default=True,
        description="End once everything that was in the topics has been processed; false runs until the "
        "run is terminated.",
    )
    take_over: bool = Field(
        default=False, description="Start even if another driver holds the application; that one is fenced and stops."
    )


def ingest_op(supervised: Supervised) -> str:
    """The name of the ingest's op, by which a run's configuration finds it."""
    return f"{supervised.name}_ingest"


def ingest_assets(supervised: Supervised) -> dg.AssetsDefinition:
    """One op that runs a driver to its end and reports the ingest and all tables, or nothing before the first commit.

    The driver's closing record makes the run a success, nothing else.
    """

    @dg.multi_asset(
        name=ingest_op(supervised),
        can_subset=False,
        specs=list(_specs(supervised)),
        description="Start a driver, follow it to its end, and take over what it reports.",
    )
    def ingest(
        context: dg.AssetExecutionContext, config: IngestConfig, weir: WeirResource, pipes: dg.PipesSubprocessClient
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        if multiprocessing.parent_process() is not None:  # a step of a run worker: its end must reach the driver
            end_with(os.getppid(), signal.SIGTERM)
        settings = weir.settings()
        context.instance.add_run_tags(context.run.run_id, supervised.tags)
        try:
            finished = pipes.run(
                context=context,
                command=[sys.executable, "-m", "weir.orchestration.worker"],
                env=weir.environment(),
                extras={
                    "reference": supervised.reference,
                    "dir": str(settings.dir),
                    "parent": os.getpid(),
                    "ingest": supervised.ingest.to_user_string(),
                    "tables": {name: key.to_user_string() for name, key in supervised.tables.items()},
                    "until_caught_up": config.until_caught_up,
                    "take_over": config.take_over,
                },
            )
            closing = next(iter(finished.get_custom_messages()), None)
        except DagsterPipesExecutionError:
            closing = None
        except dg.DagsterExecutionInterruptedError:
            results = _results_as_told(supervised, settings, context)
            if not results:
                raise
            context.log.info("the run was terminated: its driver has committed and ended")
            yield from results
            if not _has_own_process(context):
                raise  # else the run would go on with its other steps
            return
        if closing is None:
            raise dg.Failure(why_it_ended(settings, supervised.id, owner_of(context.run.run_id)))
        if "error" in closing:
            raise dg.Failure(closing["error"])
        keep_partitions_in_step(supervised, settings.warehouse, context.instance)
        yield from finished.get_results(implicit_materializations=False)

    return ingest


def continuous_job(supervised: Supervised) -> AssetJob:
    """``<app>_continuously``: the ingest without an end of its own."""
    return dg.define_asset_job(
        f"{supervised.name}_continuously",
        tags=supervised.tags,
        description="Run the ingest until it is stopped or terminated; its checks are the hourly audit's.",
        selection=dg.AssetSelection.assets(supervised.ingest, *supervised.tables.values()).without_checks(),
        config={"ops": {ingest_op(supervised): {"config": {"until_caught_up": False}}}},
    )


def _has_own_process(context: dg.AssetExecutionContext) -> bool:
    """Whether the step has another process than its run, which then ends the run; not so in the in-process executor."""
    return bool(context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED))


def _results_as_told(
    supervised: Supervised, settings: Settings, context: dg.AssetExecutionContext
) -> list[dg.MaterializeResult]:
    """What the driver of a run that somebody has terminated left, once it has ended well; else nothing.

    Pipes gives no reports of a driver that it has interrupted, so they are made of the commit here.
    """
    from weir.orchestration.committed import pace_metadata
    from weir.state.commit.protocol import newest_commit

    run = context.instance.get_run_by_id(context.run.run_id)
    if run is None or run.status != dg.DagsterRunStatus.CANCELING:
        return []
    try:
        life = ControlDatabase(settings.control_database_url).application_status(supervised.id, of_driver=True)
    except ControlDatabaseError:
        return []
    newest = newest_commit(settings.warehouse, supervised.id)
    if newest is None or life is None or (life.owner, life.state) != (owner_of(run.run_id), "stopped"):
        return []
    events = news(supervised, newest, context.instance, settings.warehouse, pace=pace_metadata(settings, supervised.id))
    return [_result(event) for event in events if event.asset_key in (supervised.ingest, *supervised.tables.values())]


def _result(event: dg.AssetMaterialization) -> dg.MaterializeResult:
    version = (event.tags or {}).get(DATA_VERSION_TAG)
    return dg.MaterializeResult(
        asset_key=event.asset_key,
        metadata=event.metadata,
        data_version=dg.DataVersion(version) if version is not None else None,
    )


def why_it_ended(settings: Settings, application: str, owner: str) -> str:
    """One sentence about a driver that left no closing record, by what it left in the control database."""
    try:
        life = ControlDatabase(settings.control_database_url).application_status(application, of_driver=True)
    except ControlDatabaseError as error:
        return f"the driver of {application} ended and {error}; its last lines above say why"
    if life is None or life.owner != owner:
        return f"the driver of {application} did not start; its last line above says why"
    if life.ended_at_ms is None or life.state == "dead":
        return f"the driver of {application} (process {life.pid}) was killed; the next run goes on from the last commit"
    return life.error or f"the driver of {application} has ended and could not report it; its last lines above say why"


def _specs(supervised: Supervised) -> Iterator[dg.AssetSpec]:
    thresholds = supervised.thresholds
    yield dg.AssetSpec(
        supervised.ingest,
        deps=list(supervised.topics.values()),
        kinds={"spark", "kafka"},
        group_name=supervised.name,
        skippable=True,
        owners=supervised.owners,
        tags=supervised.tags,
        freshness_policy=dg.FreshnessPolicy.time_window(
            fail_window=timedelta(seconds=thresholds.stale_fail_s),
            warn_window=timedelta(seconds=thresholds.stale_warn_s),
        ),
        description=f"The application {supervised.id}: one supervised driver that reads the topics and commits "
        "exactly once. Terminating the run ends it after the epoch, with a commit.",
    )
    for name, key in supervised.tables.items():
        kinds = {"deltalake", "changelog"} if name.startswith(CHANGELOG_FOLDER) else {"deltalake"}  # told in the graph
        yield dg.AssetSpec(
            key,
            deps=[supervised.ingest],
            kinds=kinds,
            group_name=supervised.name,
            skippable=True,
            owners=supervised.owners,
            tags=supervised.tags,
            description=_description(name),
            metadata={"dagster/column_schema": _columns(supervised.table_specs[name])},
        )


def _description(table: str) -> str:
    if table == DEAD_LETTERS.name:
        return 'Records that could not be read; filled where the application says on_error="dead_letter".'
    if table.startswith(CHANGELOG_FOLDER):
        return (
            f"Every committed change of the store {table.removeprefix(CHANGELOG_FOLDER)[1:]}: what its tasks "
            "restore from."
        )
    return f"The Delta table {table}, which the application's commits alone change."


def _columns(spec: TableSpec) -> dg.TableSchema:
    """The table's columns by polars' type names; key columns of updates are marked."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(name, str(dtype), tags={"weir/key": ""} if name in spec.keys else None)
            for name, dtype in spec.schema.items()
        ]
    )
