"""Compares a program with what its application has committed, before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weir.infra.kafka.admin import KafkaAdmin, require_topics
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.pipelines.application import Application
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import load_reference
from weir.pipelines.publishing.checks import sink_faults
from weir.pipelines.spark.admission import change_of, require_commit_log, require_matches, require_placement
from weir.pipelines.spark.errors import CommitLogLostError, LostPosition, PendingRowsError, StorePlacementError
from weir.pipelines.spark.topic_logs import committed_ends, lost_positions
from weir.pipelines.tasks.tables import application_tables
from weir.pipelines.topology.changes import TopologyChange
from weir.pipelines.topology.nodes import ExpectNode, PeekNode, TableSinkNode
from weir.pipelines.topology.processors import ProcessorNode
from weir.state.commit.evolution import Evolution, evolution
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.errors import TableSchemaError
from weir.state.storage.places import folder_at, is_table


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a program would do with the state that its application has committed."""

    application: str
    committed_epoch: int | None = None
    """The newest commit's; None when nothing is committed."""
    change: TopologyChange | None = None
    """None when nothing is committed."""
    obstacles: list[str] = field(default_factory=list)
    """Reasons to refuse that no flag of ``weir run`` overrides, one sentence each."""
    outputs_continued: tuple[str, ...] = ()
    """Added outputs whose tables exist already: an earlier program wrote them."""
    evolutions: Mapping[str, Evolution] = field(default_factory=dict)
    """By table, the columns that it gets."""
    lost: Sequence[LostPosition] = ()
    """Positions at which topics cannot be read on."""

    @property
    def is_refused(self) -> bool:
        """Whether a run would refuse to start without a flag, or at all."""
        return bool(self.obstacles or self.lost) or (self.change is not None and self.change.loses_state)


def plan_of(settings: Settings, reference: str) -> Plan:
    """The plan of the program at ``module:attribute``; changes nothing.

    Raises:
        OperationError: A run would leave nothing behind: the program has neither outputs nor stores.
        UnknownTopicError: Source topics do not exist.
    """
    application = load_reference(reference)
    require_results(application)
    try:
        require_commit_log(
            application, folder_at(settings.warehouse) / application.id, settings.state_dir / application.id
        )
    except CommitLogLostError as error:
        return Plan(application=application.id, obstacles=[str(error)])
    committed = newest_commit(folder_at(settings.warehouse), application.id)
    obstacles = list(map(str, sink_faults(application.topology.outside_sinks, settings.sql_url)))
    if committed is None:
        return Plan(application=application.id, obstacles=obstacles)
    with broker_for(settings) as (servers, settings):
        admin = KafkaAdmin(servers, settings.kafka)
        application = application.over(committed, admin.topics())
        counts = source_counts(application, admin)
        lost = lost_by_topics(application, committed, admin)
    app_folder = folder_at(settings.warehouse) / application.id
    change = change_of(application.topology, app_folder, committed, counts)
    if change.is_blocked:
        obstacles.append(str(PendingRowsError(application.id, change.pending_blobs)))
    for store in change.newly_divided:
        try:
            require_placement(application.topology, app_folder, store, counts)
        except StorePlacementError as error:
            obstacles.append(str(error))
    evolutions = {}
    for spec in application_tables(application.topology):
        if spec.name in committed.removed_tables:
            continue
        try:
            if needed := evolution(app_folder, spec):
                evolutions[spec.name] = needed
        except TableSchemaError as error:
            obstacles.append(str(error))
    return Plan(
        application=application.id,
        committed_epoch=committed.epoch,
        change=change,
        obstacles=obstacles,
        outputs_continued=tuple(name for name in change.outputs_added if is_table(app_folder / name)),
        evolutions=evolutions,
        lost=lost,
    )


def require_results(application: Application) -> None:
    """Raises ``OperationError`` for a program without outputs, stores, and functions that see each record."""
    nodes = application.topology.nodes
    if not any(
        isinstance(node, TableSinkNode | PeekNode | ExpectNode | ProcessorNode) or node.stores for node in nodes
    ):
        raise OperationError(
            f"the program of {application.id!r} has no output and no store, so a run would read its topics and leave "
            'nothing; end a stream or table with .to_delta("name"), or keep state, for example with '
            '.group_by_key().count("name")'
        )


def source_counts(application: Application, admin: KafkaAdmin) -> dict[str, int]:
    """Partitions of each source topic.

    Raises:
        UnknownTopicError: Some do not exist; it has all of them.
        NoMatchingTopicError: None matches a pattern.
    """
    require_matches(application)
    topics = application.topology.topics()
    counts = admin.partition_counts(topics)
    require_topics(topics, counts, admin.bootstrap_servers)
    return counts


def lost_by_topics(application: Application, committed: CommitRecord, admin: KafkaAdmin) -> list[LostPosition]:
    """Committed positions at which the topics can no longer be read on."""
    positions = committed_ends(committed, application.topology.topics())
    ids = {topic: known.topic_id for topic, known in committed.topics.items() if known.topic_id is not None}
    return lost_positions(positions, {**ids, **committed.topic_ids}, admin)
