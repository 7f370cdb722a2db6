"""Deals an application's state out among as many tasks as its topics make, after these got more partitions.

Which rows go where belongs to ``weir.pipelines.repartitioning``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weir.infra.control import ControlDatabase
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.kafka.reader import PartitionReader
from weir.infra.settings import Settings
from weir.pipelines.application import Application
from weir.pipelines.operations.at_rest import at_rest
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.plan import source_counts
from weir.pipelines.operations.registry import registered_application, require
from weir.pipelines.operations.text import counted
from weir.pipelines.repartitioning.errors import RepartitionError
from weir.pipelines.repartitioning.plan import RepartitionPlan, plan_of
from weir.pipelines.repartitioning.swap import deal, repartition
from weir.pipelines.repartitioning.unread import require_read
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.spark.topic_logs import replaced
from weir.state.changelog.dealing import Dealt
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at

OnDealt = Callable[[Dealt], None]


@dataclass(frozen=True, kw_only=True)
class Repartitioned:
    """What a repartition changed, or would change."""

    application: str
    outcome: str
    epoch: int | None
    """Of the commit that deals the rows out; None if nothing was changed."""
    tasks: dict[str, tuple[int, int]]
    """By sub-topology, how many tasks it had and has, where these are others."""
    rows: dict[str, tuple[int, int]]
    """By store, how many rows it has, and how many of them are in another task than before."""

    @property
    def changes(self) -> list[str]:
        """One line each."""
        return [
            *(
                f"sub-topology {name}: {before} tasks become {now}"
                for name, (before, now) in self.tasks.items()
                if before != now
            ),
            *(
                f"store {store}: {counted(moved, 'row')} of {rows:,} in another task"
                for store, (rows, moved) in self.rows.items()
            ),
        ]


def repartitioned(
    settings: Settings,
    application: str,
    *,
    keyed_by_record: Collection[str] = (),
    dry_run: bool = False,
    on_dealt: OnDealt = lambda dealt: None,
) -> Repartitioned:
    """Deal the state of ``application`` out, which must not be running; ``on_dealt`` hears of the rows of each store of
    each task. With ``dry_run`` everything is checked and counted, and nothing changed.

    A second call after one that was killed begins anew, or finds everything done.

    Raises:
        OperationError: The folder does not know the application, or it has committed nothing.
        RepartitionError: Some state cannot be dealt out; nothing was changed.
        CoPartitioningError: Topics that are joined have different numbers of partitions.
        LeaseHeldError: It is running.
        FencedError: A driver was started meanwhile; nothing was changed.
    """
    require(settings, application)
    program = registered_application(settings, application)
    connect_serdes(program.topology.serdes(), settings.schema_registry)
    with _held(settings, application, dry_run=dry_run), broker_for(settings) as (servers, settings):
        plan = _plan(settings, program, KafkaAdmin(servers, settings.kafka), keyed_by_record)
        kafka = {**settings.kafka, "bootstrap.servers": servers}
        require_read(
            plan,
            KafkaAdmin(servers, settings.kafka),
            lambda topic, partition: PartitionReader(kafka, topic, partition),
        )
        rows, moved, warehouse = Counter[str](), Counter[str](), folder_at(settings.warehouse)

        def tell(dealt: Dealt) -> None:
            rows[dealt.spec.name] += dealt.rows.height
            moved[dealt.spec.name] += int(dealt.moves.sum())
            on_dealt(dealt)

        epoch = None
        if dry_run:
            for _, dealt in deal(plan, warehouse / application):
                tell(dealt)
        elif plan.resized:
            epoch = repartition(warehouse, plan, on_dealt=tell)
    return Repartitioned(
        application=application,
        outcome=(
            "has as many tasks as its topics make; nothing was changed"
            if not plan.resized
            else "nothing was changed (--dry-run)"
            if dry_run
            else f"committed as epoch {epoch}; its tasks restore their stores when it is started"
        ),
        epoch=epoch,
        tasks={each.sub_topology.name: (each.before, each.now) for each in plan.resized},
        rows={store: (rows[store], moved[store]) for store in rows},
    )


@contextmanager
def _held(settings: Settings, application: str, *, dry_run: bool) -> Iterator[None]:
    if dry_run:
        yield
        return
    with at_rest(ControlDatabase(settings.control_database_url), application):
        yield


def _plan(
    settings: Settings, program: Application, admin: KafkaAdmin, keyed_by_record: Collection[str]
) -> RepartitionPlan:
    newest = newest_commit(folder_at(settings.warehouse), program.id)
    if newest is None:
        raise OperationError(
            f"{program.id} has committed nothing in {settings.dir}; start it with `weir run MODULE:APP`, for as many "
            "partitions as its topics have"
        )
    counts = source_counts(program, admin)
    _require_same_topics(program.id, newest, admin)
    return plan_of(program.id, program.topology, newest, counts, keyed_by_record=keyed_by_record)


def _require_same_topics(application: str, newest: CommitRecord, admin: KafkaAdmin) -> None:
    others = replaced(newest.topic_ids, admin.topic_ids(sorted(newest.topic_ids)))
    for topic, found in sorted(others.items()):
        raise RepartitionError(
            application,
            f"topic {topic!r} was deleted and recreated ({found}), so its keys are not those that were read; start "
            f"over with `weir reset {application}`",
        )
