"""The broker that the bench starts, as its processes find it: by the file of client properties that the broker writes.

Command lines take the path of that file, which has the address and the password, so that no process list shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import EmbeddedBroker
from weir.infra.kafka.login import read_properties
from weir.infra.settings import PREFIX, Settings

SERVERS = "bootstrap.servers"


@contextmanager
def embedded(folder: Path) -> Iterator[Path]:
    """The file of client properties of the broker in ``folder``, which runs during the block."""
    broker = EmbeddedBroker(folder)
    try:
        with broker.used():
            yield broker.files.client
    finally:
        broker.stop()


def properties(client: Path) -> dict[str, str]:
    """What librdkafka's clients need."""
    return read_properties(client)


def admin(client: Path) -> KafkaAdmin:
    """A client that knows the login."""
    found = properties(client)
    return KafkaAdmin(found[SERVERS], found)


def settings(client: Path, folder: Path, **others: Any) -> Settings:
    """Settings of a run in ``folder`` that reads from the broker."""
    found = properties(client)
    return Settings(dir=folder, bootstrap_servers=found.pop(SERVERS), kafka=found, **others)


def variables(client: Path) -> dict[str, str]:
    """The same for ``weir run``, as variables."""
    found = properties(client)
    servers = {f"{PREFIX}BOOTSTRAP_SERVERS": found.pop(SERVERS)}
    return servers | {f"{PREFIX}KAFKA_{name.replace('.', '_').upper()}": value for name, value in found.items()}
