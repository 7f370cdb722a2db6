"""The files of an embedded broker's folder, through which its users and its supervisor communicate."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

JAVA_CLIENT = "client-java.properties"


class BrokerFiles:
    """Paths in one broker's folder, and the status that the supervisor publishes there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        """Kafka's own log folder."""
        self.properties = folder / "server.properties"
        self.client = folder / "client.properties"
        """For clients of librdkafka: the address and the login."""
        self.java_client = folder / JAVA_CLIENT
        """The same for Java's clients."""
        self.ports = folder / "ports.json"
        """The ports picked at the first start, kept for later ones."""
        self.log = folder / "broker.log"
        self.keep = folder / "keep"
        """Present after ``kafka start``."""
        self.users = folder / "users.lock"
        """Shared by each command that uses the broker; held exclusively by the supervisor while it ends the broker."""
        self.starters = folder / "starters.lock"
        """Held by the one command that starts the broker."""
        self.supervisor = folder / "supervisor.lock"
        """Held by the supervisor for as long as it lives."""
        self.status = folder / "status.json"

    def read_status(self) -> dict[str, Any]:
        """``state`` (starting, ready, ending, failed), ``bootstrap_servers``, ``reason``; empty if there is none."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(self.status.read_text(encoding="utf-8")))
        return {}

    def write_status(self, **status: Any) -> None:
        write_json(self.status, status)


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file atomically."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    os.replace(fresh, path)


def can_lock(path: Path) -> bool:
    """Whether nobody holds the lock file, shared or exclusive."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True
