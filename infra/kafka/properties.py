"""The ``server.properties`` of the embedded broker: one node, loopback, suited to replayed history."""

from __future__ import annotations

from pathlib import Path

from weir.infra.kafka.login import MECHANISM, jaas_config


def broker_properties(data: Path, port: int, controller_port: int, password: str) -> dict[str, str]:
    """Broker and controller in one process, each of which asks for the login; nothing is deleted by age, and topics are
    only created explicitly."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENTS",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "sasl.mechanism.controller.protocol": MECHANISM,
        "listener.name.clients.plain.sasl.jaas.config": jaas_config(password, is_broker=True),
        "listener.name.controller.plain.sasl.jaas.config": jaas_config(password, is_broker=True),
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        # Replayed history has old timestamps, and the reader deals with records dated far ahead.
        "log.retention.ms": "-1",
        "log.message.timestamp.after.max.ms": str(2**63 - 1),
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        # One node cannot replicate; few partitions make for a quick start.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Consumers may set a session timeout below 6 s, the default of this limit.
        "group.min.session.timeout.ms": "1000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        # After a kill -9 the controller readmits the broker once its old session has expired (9 s by default).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
