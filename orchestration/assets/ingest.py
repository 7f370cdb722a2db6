"""An application's ingest and the tables that come out of it: assets that one supervised driver produces."""

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG  # has no public name
from pydantic import Field

from weir.infra.control import ControlDatabase, ControlDatabaseError
from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.assets.columns import column_schema, with_lineage
from weir.orchestration.assets.materializations import commit_materializations, dagster_values
from weir.orchestration.assets.partitions import update_partitions
from weir.orchestration.assets.program import about, about_output, code_of
from weir.orchestration.checks.commits import commit_results
from weir.orchestration.checks.evaluations import evaluation_of
from weir.orchestration.checks.files import PRESENT_CHECK, READABLE_CHECK, file_results
from weir.orchestration.checks.sinks import sink_results
from weir.orchestration.drivers.dagster_run import owner_of
from weir.orchestration.drivers.metadata import health_metadata
from weir.orchestration.guide import guide
from weir.orchestration.resources import WeirResource, run_driver
from weir.orchestration.supervised import NO_RETRIES, Supervised
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.pipelines.topology.picture import picture
from weir.state.commit.outbox import outbox_name
from weir.state.commit.protocol import newest_commit
from weir.state.commit.upserts import shown_name
from weir.state.storage.places import folder_at
from weir.state.types import CHANGELOG_FOLDER

DRIVER = "weir.orchestration.drivers.ingest"


ACCEPTED = ("accept_state_loss", "accept_lost_records")
"""Fields that are about one start: what is lost later is refused again."""


class IngestConfig(dg.Config):
    """How long the driver runs, and what it starts in spite of."""

    until_caught_up: bool = Field(
        default=True,
        description="End once everything in the topics has been processed; false runs until the run is terminated.",
    )
    take_over: bool = Field(
        default=False,
        description="Start even if another driver holds the application's lease; that driver is fenced and stops.",
    )
    accept_state_loss: bool = Field(
        default=False,
        description="Start even if a new topology or partition count leaves stores empty; the refusal says which.",
    )
    accept_lost_records: bool = Field(
        default=False,
        description="Start even if a topic was recreated, or has lost records before they were read: keep all state, "
        "and read it from its start, or continue where it can still be read.",
    )
    committed_partitions: bool = Field(
        default=False,
        description="Of topics that have got more partitions, read those that the newest commit knows; the command "
        "weir repartition then deals the state out for all of them. With until_caught_up: true only.",
    )


def ingest_assets(supervised: Supervised) -> dg.AssetsDefinition:
    """One op that runs a driver to its end and records the ingest and all tables, whichever of them are selected, or
    nothing before the first commit.

    Only the driver's closing record makes the run a success. The op has a pool to itself: where the Dagster instance
    limits pools to one, a second run of the ingest waits for the first.
    """

    @dg.multi_asset(
        name=supervised.ingest_op,
        can_subset=True,
        pool=supervised.ingest_op,
        specs=list(_specs(supervised)),
        description="Start a driver, follow it to its end, and record what it reports.",
    )
    def ingest(
        context: dg.AssetExecutionContext, config: IngestConfig, weir: WeirResource, pipes: dg.PipesSubprocessClient
    ) -> Iterator[dg.MaterializeResult[None]]:
        settings = weir.settings()
        context.instance.add_run_tags(context.run.run_id, {**supervised.tags, **NO_RETRIES})
        try:
            driven = run_driver(
                DRIVER,
                supervised,
                context,
                weir,
                pipes,
                {
                    "ingest": supervised.ingest.to_user_string(),
                    "tables": {name: key.to_user_string() for name, key in supervised.tables.items()},
                    "until_caught_up": config.until_caught_up,
                    "take_over": config.take_over,
                    "committed_partitions": config.committed_partitions,
                    **{name: getattr(config, name) for name in ACCEPTED},
                },
            )
        except dg.DagsterExecutionInterruptedError:
            events = _events_of_terminated(supervised, settings, context)
            if not events:
                raise
            context.log.info("the run was terminated: its driver has committed and ended")
            yield from _recorded(context, events)
            if not _has_own_process(context):
                raise  # otherwise the run would continue with its other steps
            return
        if driven is None:
            why = why_it_ended(settings, supervised.id, owner_of(context.run.run_id))
            raise dg.Failure(in_dagster(why, supervised.id))
        _, closing = driven
        if "error" in closing:
            raise dg.Failure(in_dagster(closing["error"], supervised.id))
        update_partitions(supervised, settings, context.instance)
        yield from _recorded(context, with_lineage(supervised, map(_event, closing["materializations"])))
        if others := set(supervised.produced) - context.selected_asset_keys:
            _evaluate(context, supervised, settings, others)

    return ingest


def _has_own_process(context: dg.AssetExecutionContext) -> bool:
    """Whether the step has a separate process, unlike under the in-process executor, so that its run ends by itself."""
    return bool(context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED))


def _events_of_terminated(
    supervised: Supervised, settings: Settings, context: dg.AssetExecutionContext
) -> list[dg.AssetMaterialization]:
    """What the driver of a terminated run left, provided that it ended with a commit; otherwise empty.

    Pipes drops the reports of a driver that it has interrupted, so they are made from the commit here.
    """
    run = context.instance.get_run_by_id(context.run.run_id)
    if run is None or run.status != dg.DagsterRunStatus.CANCELING:
        return []
    try:
        driver = ControlDatabase(settings.control_database_url).application_status(supervised.id, of_driver=True)
    except ControlDatabaseError:
        return []
    newest = newest_commit(folder_at(settings.warehouse), supervised.id)
    if newest is None or driver is None or (driver.owner, driver.state) != (owner_of(run.run_id), "stopped"):
        return []
    events = commit_materializations(
        supervised, newest, context.instance, settings, health=health_metadata(settings, supervised.id)
    )
    return [event for event in events if event.asset_key in supervised.produced]


def _event(report: Mapping[str, Any]) -> dg.AssetMaterialization:
    """A materialization as the driver reports it."""
    return dg.AssetMaterialization(
        dg.AssetKey.from_user_string(report["asset"]),
        metadata=dagster_values(report["metadata"]),
        tags={DATA_VERSION_TAG: report["data_version"]} if "data_version" in report else None,
    )


def _evaluate(
    context: dg.AssetExecutionContext, supervised: Supervised, settings: Settings, assets: Collection[dg.AssetKey]
) -> None:
    """Make the checks of ``assets``, which were recorded but not selected: Dagster makes those of the selected ones."""
    results = (
        *commit_results(supervised, settings),
        *sink_results(supervised, settings),
        *file_results(supervised, settings, PRESENT_CHECK, assets, reads=False),
        *file_results(supervised, settings, READABLE_CHECK, assets, reads=True),
    )
    for result in results:
        if result.asset_key in assets:
            context.log_event(evaluation_of(result))


def _recorded(
    context: dg.AssetExecutionContext, events: Iterable[dg.AssetMaterialization]
) -> Iterator[dg.MaterializeResult[None]]:
    """Results for the assets that the run selects; the others, which the driver has brought up to date all the same,
    are recorded beside them."""
    for event in events:
        if event.asset_key not in context.selected_asset_keys:
            context.log_event(event)
            continue
        version = (event.tags or {}).get(DATA_VERSION_TAG)
        yield dg.MaterializeResult(
            asset_key=event.asset_key,
            metadata=event.metadata,
            data_version=dg.DataVersion(version) if version is not None else None,
        )


def why_it_ended(settings: Settings, application: str, owner: str) -> str:
    """One sentence about a driver that left no closing record, from what it left in the control database."""
    try:
        driver = ControlDatabase(settings.control_database_url).application_status(application, of_driver=True)
    except ControlDatabaseError as error:
        return f"the driver of {application} ended and {error}; its last lines above say why"
    if driver is None or driver.owner != owner:
        return f"the driver of {application} did not start; its last line above says why"
    if driver.ended_at_ms is None or driver.state == "dead":
        return (
            f"the driver of {application} (process {driver.pid}) was killed; the next run resumes from the last commit"
        )
    return driver.error or f"the driver of {application} ended and could not report why; see its last lines above"


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
        metadata={
            "topology": _topology(supervised.application.topology.describe()),
            "what to launch": dg.MetadataValue.md(guide(supervised)),
            **code_of(supervised),
        },
        description=" ".join(
            (
                about(supervised),
                f"The application {supervised.id}: one supervised driver that reads the topics and commits exactly "
                "once. Terminating the run finishes the epoch and commits.",
            )
        ).strip(),
    )
    outside = {outbox_name(sink.name): sink for sink in supervised.application.topology.outside_sinks}
    said = {sink.table: about_output(sink) for sink in supervised.application.topology.sinks}
    for name, key in supervised.tables.items():
        kinds = {"deltalake", "changelog"} if name.startswith(CHANGELOG_FOLDER) else {"deltalake"}  # shown in the graph
        if name in outside:
            kinds = {outside[name].kind}
        yield dg.AssetSpec(
            key,
            deps=[supervised.ingest],
            kinds=kinds,
            group_name=supervised.name,
            skippable=True,
            owners=supervised.owners,
            tags=supervised.tags,
            description=f"What leaves for {outside[name]}, once committed."
            if name in outside
            else " ".join((said.get(name, ""), _description(name))).strip(),
            metadata={"dagster/column_schema": column_schema(supervised.table_specs[name])},
        )


def _topology(description: str) -> dg.MarkdownMetadataValue:
    """What ``Topology.describe`` gives, as a picture and in words."""
    drawn = base64.b64encode(picture(description).encode()).decode()
    return dg.MetadataValue.md(f"![topology](data:image/svg+xml;base64,{drawn})\n\n```\n{description}\n```")


def _description(table: str) -> str:
    if table == DEAD_LETTERS.name:
        return (
            'Records that could not be read, where the application sets on_error="dead_letter", or processed '
            '(on_processing_error="dead_letter").'
        )
    if table.startswith(CHANGELOG_FOLDER):
        return (
            f"Every committed change of the store {table.removeprefix(CHANGELOG_FOLDER)[1:]}; its tasks restore "
            "from this."
        )
    if shown_name(table) != table:
        return (
            f"The Delta table {shown_name(table)}: one row per key, brought up to date after the application's commits."
        )
    return f"The Delta table {table}; only the application's commits change it."
