"""``weir migrate`` as a job: positions and state from other systems, and positions back to them.

The first step is a dry run that shows its result as metadata; the second carries it out, and is skipped until the
configuration says so. What is moved and how is in ``weir.pipelines.operations.migration``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from weir.infra.control import LeaseHeldError
from weir.infra.settings import Settings
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
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

EMPTY_STORES = Field(
    default=False, description="The application's stores start empty: results cover only what is read from now on."
)


class FromGroup(dg.Config):
    """Start at the committed offsets of a consumer group."""

    direction: Literal["from_group"] = "from_group"
    group: str = Field(description="The consumer group to read.")
    empty_stores: bool = EMPTY_STORES


class FromCheckpoints(dg.Config):
    """Start at the positions of source topics in Kafka Streams' files."""

    direction: Literal["from_checkpoints"] = "from_checkpoints"
    paths: list[str] = Field(description=".checkpoint or .position files, or folders that hold such files.")
    empty_stores: bool = EMPTY_STORES


class FromSpark(dg.Config):
    """Start where the newest committed batch of a Spark Structured Streaming query ends."""

    direction: Literal["from_spark"] = "from_spark"
    folder: str = Field(description="The query's checkpointLocation.")
    empty_stores: bool = EMPTY_STORES


class FromKafkaStreams(dg.Config):
    """Continue a stopped Kafka Streams application, with its state."""

    direction: Literal["from_kafka_streams"] = "from_kafka_streams"
    application_id: str = Field(description="Kafka Streams' application.id.")
    changelogs: dict[str, str] = Field(
        default={}, description="Changelog topics by store, for those that are not <application.id>-<store>-changelog."
    )
    serdes: dict[str, str] = Field(default={}, description="Where each store's StoreSerdes is (module:name), by store.")
    empty_stores: bool = Field(default=False, description="Let stores that cannot be taken start empty.")


class ToGroup(dg.Config):
    """Give a consumer group the committed positions."""

    direction: Literal["to_group"] = "to_group"
    group: str = Field(description="The consumer group to write.")


class ToCheckpoints(dg.Config):
    """Write the committed positions as Kafka Streams' ``.checkpoint`` files."""

    direction: Literal["to_checkpoints"] = "to_checkpoints"
    folder: str = Field(description="Where to write the files.")


class ToKafkaStreams(dg.Config):
    """Hand the application to Kafka Streams, with its state."""

    direction: Literal["to_kafka_streams"] = "to_kafka_streams"
    application_id: str = Field(description="Kafka Streams' application.id.")
    state_dir: str | None = Field(default=None, description="Where to write .checkpoint files.")
    changelogs: dict[str, str] = Field(
        default={}, description="Changelog topics by store, for those that are not <application.id>-<store>-changelog."
    )
    serdes: dict[str, str] = Field(default={}, description="Where each store's StoreSerdes is (module:name), by store.")
    replace: bool = Field(default=False, description="Overwrite what Kafka Streams left in its topics and group.")
    empty_stores: bool = Field(default=False, description="Let Kafka Streams start stores empty that cannot be moved.")


Move = FromGroup | FromCheckpoints | FromSpark | FromKafkaStreams | ToGroup | ToCheckpoints | ToKafkaStreams


class MigrationConfig(dg.Config):
    """The direction, and whether to carry it out."""

    move: Move = Field(
        discriminator="direction", description="What to move where: one of the directions of weir migrate."
    )
    dry_run: bool = Field(default=True, description="Show exactly what would change; change nothing.")


def migration_op(supervised: Supervised) -> str:
    """The name of the migration job's first op, which takes the configuration."""
    return f"{supervised.name}_migration_dry_run"


def migration_job(supervised: Supervised) -> dg.JobDefinition:
    """``<app>_migration``."""

    @dg.op(
        name=migration_op(supervised),
        description="Show what would change; change nothing.",
        out={"shown": dg.Out(dg.Nothing), "approved": dg.Out(is_required=False)},
    )
    def show(context: dg.OpExecutionContext, config: MigrationConfig, weir: WeirResource) -> Iterator[dg.Output[Any]]:
        moved = _move(supervised, weir.settings(), config.move, dry_run=True)
        yield dg.Output(None, "shown", metadata=_metadata(context, moved))
        if not config.dry_run:
            yield dg.Output(config.move, "approved")

    @dg.op(
        name=f"{supervised.name}_migration_carried_out",
        out=dg.Out(dg.Nothing),
        description="Carry out what was shown, if the configuration says so.",
    )
    def carry_out(context: dg.OpExecutionContext, weir: WeirResource, move: Any) -> None:
        moved = _move(supervised, weir.settings(), move, dry_run=False)
        context.add_output_metadata(_metadata(context, moved))

    @dg.job(
        name=f"{supervised.name}_migration",
        tags=supervised.tags,
        executor_def=dg.in_process_executor,
        description="Move positions and state here from another system, or positions back to it; shows what would "
        "change, and carries it out with dry_run: false.",
    )
    def job() -> None:
        _, approved = show()
        carry_out(approved)

    return job


def _move(supervised: Supervised, settings: Settings, move: Move, *, dry_run: bool) -> Moved:
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
    except (OperationError, MigrationError, LeaseHeldError) as error:
        raise dg.Failure(str(error), allow_retries=False) from None


def _metadata(context: dg.OpExecutionContext, moved: Moved) -> dict[str, dg.MetadataValue]:
    context.log.info("%s: %s", moved.what, moved.outcome)
    lines = [*moved.changes, *(f"note: {note}" for note in moved.notes)]
    return {
        "outcome": dg.MetadataValue.text(moved.outcome),
        "source": dg.MetadataValue.text(moved.source or moved.what),
        "changes": dg.MetadataValue.md("\n".join(f"- {line}" for line in lines) or "none"),
    }
