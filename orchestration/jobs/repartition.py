"""``weir_repartition``: deals an application's state out after its topics got more partitions, as the command does."""

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from weir.infra.control import LeaseHeldError
from weir.infra.kafka.admin import KafkaAdminError
from weir.orchestration.assets.materializations import dagster_values
from weir.orchestration.drivers.metadata import offsets_metadata
from weir.orchestration.jobs.shared import by_application, chosen, job_of, refused
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.errors import CoPartitioningError
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.positions import committed_positions
from weir.pipelines.operations.repartition import Repartitioned, repartitioned
from weir.pipelines.repartitioning.errors import RepartitionError
from weir.state.changelog.dealing import Dealt
from weir.state.commit.protocol import newest_commit
from weir.state.errors import FencedError
from weir.state.storage.places import folder_at

REFUSALS = (CoPartitioningError, FencedError, KafkaAdminError, LeaseHeldError, OperationError, RepartitionError)


class RepartitionConfig(dg.Config):
    """Whether to change anything, and what a program cannot say."""

    dry_run: bool = Field(default=True, description="Check and count everything; change nothing.")
    keyed_by_record: list[str] = Field(
        default=[], description="Processors' stores whose keys are those of the records, by name."
    )


def repartition_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_repartition``."""

    @dg.op(
        name="weir_deal_out",
        description="Deal the state out among the tasks of all partitions, if the configuration says so.",
    )
    def deal_out(context: dg.OpExecutionContext, config: RepartitionConfig, weir: WeirResource) -> None:
        supervised, settings = chosen(context, applications), weir.settings()

        def tell(dealt: Dealt) -> None:
            context.log.info(
                "%s_%s: %s, %s rows", dealt.sub_topology, dealt.partition, dealt.spec.name, f"{dealt.rows.height:,}"
            )

        try:
            done = repartitioned(
                settings,
                supervised.id,
                keyed_by_record=config.keyed_by_record,
                dry_run=config.dry_run,
                on_dealt=tell,
            )
        except REFUSALS as error:
            raise refused(error, supervised) from None
        context.log.info("%s: %s", supervised.id, done.outcome)
        context.add_output_metadata(_metadata(done))
        if done.epoch is not None:
            newest = newest_commit(folder_at(settings.warehouse), supervised.id)
            context.log_event(
                dg.AssetMaterialization(
                    supervised.positions,
                    description=f"repartitioned: {done.outcome}",
                    metadata={
                        **_metadata(done),
                        **dagster_values(offsets_metadata(committed_positions(newest, supervised.topics))),
                    },
                )
            )

    return job_of(
        applications,
        "weir_repartition",
        deal_out,
        by_application(applications),
        "Keep the state of a stopped application whose topics have got more partitions: each key's rows go to the task "
        "of the partition where its new records are. Shows what would change, and changes it with dry_run: false.",
    )


def _metadata(done: Repartitioned) -> dict[str, dg.MetadataValue]:
    return {
        "outcome": dg.MetadataValue.text(done.outcome),
        "changes": dg.MetadataValue.md("\n".join(f"- {line}" for line in done.changes) or "none"),
    }
