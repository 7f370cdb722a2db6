"""The embedded broker: a real Apache Kafka (KRaft, one node, loopback) that belongs to a folder.

Commands hold a shared lock on a file in the folder while they use the broker; the kernel releases it even after
``kill -9``. A supervisor process (``weir.infra.kafka.supervisor``) owns the Java process and ends it once nobody holds
the lock and no ``kafka start`` keeps it up. The broker asks for a login (``weir.infra.kafka.login``). This module is
the users' side: starting, using, keeping, stopping.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from weir.infra.jars import jars
from weir.infra.java import java_executable
from weir.infra.kafka.files import BrokerFiles, can_lock
from weir.infra.kafka.login import password_of, read_properties, write_logins
from weir.infra.settings import Settings

START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
_POLL_S = 0.05
_PROBES = 5
_STARTS = 2


class BrokerStartError(Exception):
    """The embedded broker did not start; the text says why and where its log is."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return f"the embedded broker in {self.folder} did not start: {self.reason}"


@contextlib.contextmanager
def broker_for(settings: Settings) -> Iterator[tuple[str, Settings]]:
    """Bootstrap servers to use within the block, and ``settings`` with the login there: your own Kafka, or else the
    folder's embedded broker, started if needed.

    The embedded broker keeps its address across restarts (unless another program has taken the port) and ends about two
    seconds after its last user, unless ``kafka start`` keeps it up.

    Raises:
        BrokerStartError: It did not start within a minute.
        JarsError, MissingJavaError: Set-up is incomplete; the text names the command.
    """
    if settings.bootstrap_servers is not None:
        yield settings.bootstrap_servers, settings
        return
    broker = EmbeddedBroker(settings.kafka_dir)
    with broker.used() as bootstrap_servers:
        yield bootstrap_servers, settings.model_copy(update={"kafka": {**settings.kafka, **broker.login()}})


def broker_of(settings: Settings) -> tuple[str, Settings] | None:
    """The same as ``broker_for`` for a short question that must not start the embedded broker, nor keep it up: None if
    it does not run."""
    if settings.bootstrap_servers is not None:
        return settings.bootstrap_servers, settings
    broker = EmbeddedBroker(settings.kafka_dir)
    status = broker.files.read_status()
    if status.get("state") != "ready" or not broker.is_supervised():
        return None
    return str(status["bootstrap_servers"]), settings.model_copy(update={"kafka": {**settings.kafka, **broker.login()}})


class EmbeddedBroker:
    """The broker of one folder, seen from any process."""

    def __init__(self, folder: Path) -> None:
        self.files = BrokerFiles(folder)

    @contextlib.contextmanager
    def used(self) -> Iterator[str]:
        """Keep the broker up during the block; yields its bootstrap servers."""
        self.files.folder.mkdir(parents=True, exist_ok=True)
        with open(self.files.users, "a") as users:
            fcntl.flock(users, fcntl.LOCK_SH)
            yield self.ensure_running()

    def ensure_running(self) -> str:
        """Start the broker unless it is running, and wait until it answers; returns its bootstrap servers.

        Call it while holding the broker in use; a driver that has lost its broker calls it again.
        """
        with open(self.files.starters, "a") as starters:
            fcntl.flock(starters, fcntl.LOCK_EX)
            bootstrap_servers = self._wait_until_ready()
            self._replace_deleted_logins(bootstrap_servers)
            return bootstrap_servers

    def keep(self) -> str:
        """``kafka start``: start the broker and leave it up after its users are gone."""
        with self.used() as bootstrap_servers:
            self.files.keep.touch()
            return bootstrap_servers

    def login(self) -> dict[str, str]:
        """The properties with which librdkafka's clients log in at the running broker; none for one that an earlier
        version of Weir has started, which asks for no login."""
        return {
            name: value for name, value in read_properties(self.files.client).items() if name != "bootstrap.servers"
        }

    def stop(self) -> bool:
        """``kafka stop``: no longer keep the broker up. True once it has ended (or was not running); False while other
        commands use it: it ends with the last of them."""
        self.files.keep.unlink(missing_ok=True)
        until = time.monotonic() + STOP_LIMIT_S
        while self.is_supervised():
            if self.is_used() or time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return True

    def is_supervised(self) -> bool:
        """Whether the folder has a live supervisor (the broker is running, starting or ending)."""
        return not can_lock(self.files.supervisor)

    def is_used(self) -> bool:
        """Whether a command is using the broker."""
        for _ in range(_PROBES):  # the supervisor probes the lock, too, for an instant
            if self.files.read_status().get("state") == "ending" or can_lock(self.files.users):
                return False
            time.sleep(_POLL_S)
        return True

    def _replace_deleted_logins(self, bootstrap_servers: str) -> None:
        """Write those of the clients' files anew that were deleted while the broker runs."""
        if self.files.client.exists() and self.files.java_client.exists():
            return
        password = password_of(read_properties(self.files.properties))
        if password is not None:  # None: an earlier version has started it
            write_logins(self.files, bootstrap_servers, password)

    def _start_supervisor(self) -> None:
        jars("kafka")
        java_executable()
        self.files.status.unlink(missing_ok=True)
        with open(self.files.log, "ab") as log:
            # A separate session: Ctrl-C in a terminal ends only the commands, and the broker once their lock is free.
            # The process started here forks a child that continues in its place, so nobody has to wait for it.
            code = subprocess.run(
                [sys.executable, "-m", "weir.infra.kafka.supervisor", str(self.files.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=Path(__file__).parents[2],
                check=False,
            ).returncode
        if code != 0:
            raise BrokerStartError(
                str(self.files.folder), f"its supervisor ended with code {code} (log: {self.files.log})"
            )

    def _wait_until_ready(self) -> str:
        starts = 0
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            is_supervised, status = self.is_supervised(), self.files.read_status()
            if is_supervised and status.get("state") == "ready":
                return str(status["bootstrap_servers"])
            if not is_supervised:
                if starts and status.get("state") == "failed":
                    raise BrokerStartError(str(self.files.folder), f"{status['reason']} (log: {self.files.log})")
                if starts == _STARTS:
                    raise BrokerStartError(str(self.files.folder), f"its supervisor ended (log: {self.files.log})")
                self._start_supervisor()
                starts += 1
            time.sleep(_POLL_S)
        raise BrokerStartError(
            str(self.files.folder), f"no answer within {START_LIMIT_S:.0f} s (log: {self.files.log})"
        )
