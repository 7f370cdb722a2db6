"""The process that owns an embedded broker's Java process (``python -m weir.infra.kafka.supervisor FOLDER``).

It formats the folder at the first start, starts Kafka, restarts it if it dies, and ends it once no command has held the
folder's users lock for a moment and there is no keep mark, or the folder is gone. If the supervisor itself is killed,
the kernel ends Kafka with it. The broker's output goes to its log, which this process inherits as its own output.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from weir.infra.jars import JarsError, jars
from weir.infra.java import MissingJavaError, java_executable, shared_classes
from weir.infra.kafka.files import BrokerFiles, write_json
from weir.infra.kafka.login import (
    PASSWORD,
    client_properties,
    new_password,
    read_properties,
    write_logins,
    write_properties,
)
from weir.infra.kafka.properties import broker_properties
from weir.infra.process import end_with_parent

IDLE_S = 2.0
_POLL_S = 0.25
_READY_LIMIT_S = 50.0
_STOP_LIMIT_S = 10.0
_RESTARTS = 3
_LOG_LIMIT_BYTES = 16 << 20
_BROKER_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError")
_TOOL_OPTIONS = ("-XX:TieredStopAtLevel=1",)


class _StartError(Exception):
    """Kafka did not start; the text says why."""


class Supervisor:
    """One life of one folder's broker."""

    def __init__(self, folder: Path) -> None:
        self.files = BrokerFiles(folder)
        self.kafka: subprocess.Popen[bytes] | None = None
        self.password: str | None = None
        """The same for each Kafka of this life: its clients go on."""
        self.is_asked_to_end = False

    def run(self) -> int:
        """Own the broker until nobody needs it; returns 0 after a clean end, 1 if it could not start."""
        signal.signal(signal.SIGTERM, self._end)
        with open(self.files.supervisor, "a") as mine:
            try:
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 0  # another supervisor has the folder
            if os.fork():
                os._exit(0)  # the process that was started returns; the lock and the work are the child's
            with open(self.files.users, "a") as users:
                try:
                    self._start()
                    self._watch(users, os.fstat(mine.fileno()).st_ino)
                except (_StartError, JarsError, MissingJavaError) as error:
                    self._stop()
                    self._publish(state="failed", reason=str(error))
                    return 1
                self._publish(state="ending")
                self._stop()
                with contextlib.suppress(OSError):
                    self.files.status.unlink()
                fcntl.flock(mine, fcntl.LOCK_UN)  # before the users' lock: whoever waits for that starts a new one
        return 0

    def _watch(self, users: IO[str], inode: int) -> None:
        restarts, idle_since = 0, time.monotonic()
        while not self.is_asked_to_end and _inode(self.files.supervisor) == inode:
            if self.kafka is not None and self.kafka.poll() is not None:
                restarts += 1
                if restarts > _RESTARTS:
                    raise _StartError(f"it ended {restarts} times, the last time with code {self.kafka.returncode}")
                print(f"supervisor: Kafka ended with code {self.kafka.returncode}; restarting it", flush=True)
                self._start()
            if self.files.keep.exists() or not _lock(users):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > IDLE_S:
                return  # the users' lock stays held: new users wait for the end, then start a new broker
            else:
                fcntl.flock(users, fcntl.LOCK_UN)
            time.sleep(_POLL_S)

    def _start(self) -> None:
        self._publish(state="starting")
        with contextlib.suppress(OSError):
            if self.files.log.stat().st_size > _LOG_LIMIT_BYTES:
                os.truncate(self.files.log, 0)
        port, controller_port = self._ports()
        bootstrap_servers = f"127.0.0.1:{port}"
        self.password = self.password or read_properties(self.files.client).get(PASSWORD) or new_password()
        write_logins(self.files, bootstrap_servers, self.password)
        broker = broker_properties(self.files.data, port, controller_port, self.password)
        write_properties(self.files.properties, broker)
        if not (self.files.data / "meta.properties").exists():
            self._format()
        self.kafka = subprocess.Popen(
            self._java(_BROKER_OPTIONS, "kafka.Kafka", str(self.files.properties)),
            stdin=subprocess.DEVNULL,
            preexec_fn=end_with_parent(),
        )
        self._wait_until_it_answers(client_properties(bootstrap_servers, self.password))
        self._publish(state="ready", bootstrap_servers=bootstrap_servers, pid=os.getpid(), kafka_pid=self.kafka.pid)

    def _format(self) -> None:
        cluster = _random_uuid()
        done = subprocess.run(
            self._java(
                _TOOL_OPTIONS, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self.files.properties)
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            preexec_fn=end_with_parent(),
        )
        if done.returncode != 0:
            raise _StartError(f"its folder could not be formatted: {done.stdout.strip()[-500:]}")

    def _wait_until_it_answers(self, properties: Mapping[str, str]) -> None:
        assert self.kafka is not None
        client = AdminClient(
            {
                **properties,
                "socket.timeout.ms": 2000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        until = time.monotonic() + _READY_LIMIT_S
        while time.monotonic() < until and not self.is_asked_to_end:
            if self.kafka.poll() is not None:
                raise _StartError(f"Kafka ended with code {self.kafka.returncode}: {self._last_error()}")
            with contextlib.suppress(KafkaException):
                if client.list_topics(timeout=0.2).brokers:
                    return
        raise _StartError(f"Kafka did not answer on {properties['bootstrap.servers']} within {_READY_LIMIT_S:.0f} s")

    def _stop(self) -> None:
        if self.kafka is None or self.kafka.poll() is not None:
            return
        self.kafka.terminate()
        try:
            self.kafka.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kafka.kill()
            self.kafka.wait()

    def _ports(self) -> tuple[int, int]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            kept = json.loads(self.files.ports.read_text(encoding="utf-8"))
            if _is_free(kept["port"]) and _is_free(kept["controller_port"]):
                return kept["port"], kept["controller_port"]
            print("supervisor: another program has taken the broker's port; picking new ones", flush=True)
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            second.bind(("127.0.0.1", 0))
            port, controller_port = first.getsockname()[1], second.getsockname()[1]
        write_json(self.files.ports, {"port": port, "controller_port": controller_port})
        return port, controller_port

    def _java(self, options: tuple[str, ...], main_class: str, *arguments: str) -> list[str]:
        class_path = ":".join(str(jar) for jar in jars("kafka"))
        return [
            java_executable(),
            *options,
            *shared_classes("kafka"),
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
            "-cp",
            class_path,
            main_class,
            *arguments,
        ]

    def _last_error(self) -> str:
        with contextlib.suppress(OSError):
            lines = self.files.log.read_text(encoding="utf-8", errors="replace").splitlines()[-60:]
            errors = [line for line in lines if " ERROR " in line or "Exception" in line]
            return (errors or lines or ["no output"])[-1].strip()
        return "no output"

    def _publish(self, **status: object) -> None:
        with contextlib.suppress(OSError):  # the folder may be gone
            self.files.write_status(**status)

    def _end(self, *_: object) -> None:
        self.is_asked_to_end = True


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _inode(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_ino
    return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _random_uuid() -> str:
    """A cluster id as Kafka writes them: 16 bytes in URL-safe base64, which may not begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


if __name__ == "__main__":
    sys.exit(Supervisor(Path(sys.argv[1])).run())
