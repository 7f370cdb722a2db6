"""``weir migrate`` as jobs, one per direction: positions and state from other systems, and positions back to them.

The first step is a dry run that shows its result as metadata; the second carries it out, and is skipped until the
configuration says so. What is moved and how is in ``weir.pipelines.operations.migration``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from weir.infra.control import LeaseHeldError
from weir.infra.settings import Settings
from weir.orchestration.assets.materializations import dagster_values
from weir.orchestration.drivers.metadata import offsets_metadata
from weir.orchestration.jobs.shared import by_application, chosen, partitioned, refused
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised, owners_of
from weir.pipelines.migrate import MigrationError
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.migration import (
    Moved,
    move_from_checkpoints,
    move_from_group,
    move_from_kafka_streams,
    move_from_spark,
    move_to_checkpoints,
    move_to_group,
    move_to_kafka_streams,
    place,
)
from weir.pipelines.operations.positions import committed_positions
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

EMPTY_STORES = Field(
    default=False, description="The application's stores start empty: results cover only what is read from now on."
)
CHANGELOGS: dict[str, str] = Field(
    default={}, description="Changelog topics by store, for those that are not <application.id>-<store>-changelog."
)
SERDES: dict[str, str] = Field(default={}, description="Where each store's StoreSerdes is (module:name), by store.")


class MigrationConfig(dg.Config):
    """Whether to carry the migration out."""

    dry_run: bool = Field(default=True, description="Show exactly what would change; change nothing.")


class FromGroup(MigrationConfig):
    """Start at the committed offsets of a consumer group."""

    group: str = Field(default="", description="The consumer group to read.")
    empty_stores: bool = EMPTY_STORES


class FromCheckpoints(MigrationConfig):
    """Start at the positions of source topics in Kafka Streams' files."""

    paths: list[str] = Field(default=[], description=".checkpoint or .position files, or folders that hold such files.")
    empty_stores: bool = EMPTY_STORES


class FromSpark(MigrationConfig):
    """Start where the newest committed batch of a Spark Structured Streaming query ends."""

    folder: str = Field(default="", description="The query's checkpointLocation.")
    empty_stores: bool = EMPTY_STORES


class FromKafkaStreams(MigrationConfig):
    """Continue a stopped Kafka Streams application from its positions and stores."""

    application_id: str = Field(default="", description="Kafka Streams' application.id.")
    changelogs: dict[str, str] = CHANGELOGS
    serdes: dict[str, str] = SERDES
    empty_stores: bool = Field(default=False, description="Let stores that cannot be taken start empty.")


class ToGroup(MigrationConfig):
    """Give a consumer group the committed positions."""

    group: str = Field(default="", description="The consumer group to write.")


class ToCheckpoints(MigrationConfig):
    """Write the committed positions as Kafka Streams' ``.checkpoint`` files."""

    folder: str = Field(default="", description="Where to write the files.")


class ToKafkaStreams(MigrationConfig):
    """Give a Kafka Streams application the positions and stores."""

    application_id: str = Field(default="", description="Kafka Streams' application.id.")
    state_dir: str | None = Field(default=None, description="Where to write .checkpoint files.")
    changelogs: dict[str, str] = CHANGELOGS
    serdes: dict[str, str] = SERDES
    replace: bool = Field(default=False, description="Overwrite what Kafka Streams left in its topics and group.")
    empty_stores: bool = Field(default=False, description="Let Kafka Streams start stores empty that cannot be moved.")


NEEDED = ("group", "paths", "folder", "application_id")
"""Fields that a dry run needs, too; the form opens with them empty."""


def migration_jobs(applications: Sequence[Supervised]) -> list[dg.JobDefinition]:
    """``weir_migrate_from_group`` and so on: one per direction of ``weir migrate``."""
    return [
        _migration_job(applications, f"weir_migrate_{direction}", config)
        for direction, config in (
            ("from_group", FromGroup),
            ("from_checkpoints", FromCheckpoints),
            ("from_spark", FromSpark),
            ("from_kafka_streams", FromKafkaStreams),
            ("to_group", ToGroup),
            ("to_checkpoints", ToCheckpoints),
            ("to_kafka_streams", ToKafkaStreams),
        )
    ]


def _migration_job(applications: Sequence[Supervised], name: str, kind: type[MigrationConfig]) -> dg.JobDefinition:
    @dg.op(
        name=f"{name}_shown",
        description="Show what would change; change nothing.",
        config_schema=kind.to_fields_dict(),
        out={"shown": dg.Out(dg.Nothing), "approved": dg.Out(is_required=False)},
    )
    def show(context: dg.OpExecutionContext, weir: WeirResource) -> Iterator[dg.Output[Any]]:
        config = kind(**context.op_config)
        moved = _move(chosen(context, applications), weir.settings(), config, dry_run=True)
        yield dg.Output(None, "shown", metadata=_metadata(context, moved))
        if not config.dry_run:
            yield dg.Output(config, "approved")

    @dg.op(
        name=f"{name}_carried_out",
        out=dg.Out(dg.Nothing),
        description="Carry out what was shown, if the configuration says so.",
    )
    def carry_out(context: dg.OpExecutionContext, weir: WeirResource, move: Any) -> None:
        supervised = chosen(context, applications)
        moved = _move(supervised, weir.settings(), move, dry_run=False)
        metadata = _metadata(context, moved)
        context.add_output_metadata(metadata)
        newest = newest_commit(folder_at(weir.settings().warehouse), supervised.id)
        context.log_event(
            dg.AssetMaterialization(
                supervised.positions,
                description=f"{moved.what}: {moved.outcome}",
                metadata={
                    **metadata,
                    "direction": name.removeprefix("weir_migrate_").replace("_", " "),
                    **dagster_values(offsets_metadata(committed_positions(newest, supervised.topics))),
                },
            )
        )

    @dg.job(
        name=name,
        config=partitioned(show, by_application(applications)),
        executor_def=dg.in_process_executor,
        owners=owners_of(applications),
        description=f"{kind.__doc__} Shows what would change, and carries it out with dry_run: false.",
    )
    def job() -> None:
        _, approved = show()
        carry_out(approved)

    return job


def _move(supervised: Supervised, settings: Settings, move: MigrationConfig, *, dry_run: bool) -> Moved:
    for name in NEEDED:
        if getattr(move, name, None) in ("", []):
            raise dg.Failure(f"{name} is empty: {type(move).model_fields[name].description}", allow_retries=False)
    try:
        match move:
            case ToGroup():
                return move_to_group(settings, supervised.id, move.group, dry_run=dry_run)
            case ToCheckpoints():
                return move_to_checkpoints(settings, supervised.id, Path(move.folder), dry_run=dry_run)
            case ToKafkaStreams():
                return move_to_kafka_streams(
                    settings,
                    supervised.id,
                    move.application_id,
                    state_dir=None if move.state_dir is None else Path(move.state_dir),
                    changelogs=move.changelogs,
                    serdes=move.serdes,
                    replace=move.replace,
                    empty_stores=move.empty_stores,
                    dry_run=dry_run,
                )
        with place(settings, supervised.reference) as where:
            match move:
                case FromGroup():
                    return move_from_group(where, move.group, empty_stores=move.empty_stores, dry_run=dry_run)
                case FromCheckpoints():
                    return move_from_checkpoints(
                        where, [Path(path) for path in move.paths], empty_stores=move.empty_stores, dry_run=dry_run
                    )
                case FromSpark():
                    return move_from_spark(where, Path(move.folder), empty_stores=move.empty_stores, dry_run=dry_run)
                case FromKafkaStreams():
                    return move_from_kafka_streams(
                        where,
                        move.application_id,
                        changelogs=move.changelogs,
                        serdes=move.serdes,
                        empty_stores=move.empty_stores,
                        dry_run=dry_run,
                    )
                case _:
                    raise TypeError(type(move))
    except (OperationError, MigrationError, LeaseHeldError) as error:
        raise refused(error, supervised) from None


def _metadata(context: dg.OpExecutionContext, moved: Moved) -> dict[str, dg.MetadataValue]:
    context.log.info("%s: %s", moved.what, moved.outcome)
    lines = [*moved.changes, *(f"note: {note}" for note in moved.notes)]
    return {
        "outcome": dg.MetadataValue.text(moved.outcome),
        "source": dg.MetadataValue.text(moved.source or moved.what),
        "changes": dg.MetadataValue.md("\n".join(f"- {line}" for line in lines) or "none"),
    }
