"""Programs whose topology changes, and commits of them."""

from __future__ import annotations

from datetime import timedelta

from weir import Int64, StreamsBuilder, String
from weir.pipelines.topology.topology import Topology
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.types import StateId

MINUTE = timedelta(minutes=1)


def committed(topology: Topology, count: int = 1) -> CommitRecord:
    """A commit of the topology, with ``count`` tasks per sub-topology."""
    state = StateId(1, 7)
    return CommitRecord(
        kind="commit",
        generation=1,
        epoch=7,
        at_ms=0,
        fingerprint=topology.fingerprint,
        topology=topology.committed_form,
        tasks={
            f"{sub_topology.stored_name}_{partition}": TaskCommit(state=state, instance="i")
            for sub_topology in topology.sub_topologies
            for partition in range(count)
        },
    )


def held(grace: timedelta = MINUTE, history: timedelta = 10 * MINUTE) -> StreamsBuilder:
    """Sales that wait for late rates."""
    builder = StreamsBuilder()
    rates = builder.table(
        "rates", key=String("currency"), value=Int64("rate"), store="rates", history_retention=history
    )
    builder.stream("sales", key=String("currency"), value=Int64("amount")).join(
        rates, grace=grace, store="waiting"
    ).to_delta("out")
    return builder
