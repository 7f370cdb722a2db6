"""Archives of Spark's and Kafka's classes, so that both start sooner (``python -m weir.infra.class_archives``).

Java spends most of its first seconds loading, verifying and linking classes; it can keep the result in a file (JEP 350)
and map that at the next start: 3.9 s of CPU until Spark's first job instead of 5.9. An archive is made by exercising
the program's usual work and then asking its Java process for one with ``jcmd``. Without it everything still works, only
more slowly; Java silently ignores an archive made by another Java or from other jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer

from weir.infra.jars import JarsError
from weir.infra.java import MissingJavaError, class_archive, java_executable
from weir.infra.kafka.admin import KafkaAdmin, KafkaAdminError
from weir.infra.kafka.broker import BrokerStartError, EmbeddedBroker
from weir.infra.settings import Settings
from weir.infra.spark.session import sql_session, stop_session

_RECORDED = "-XX:+RecordDynamicDumpInfo"
_DUMP_LIMIT_S = 120.0
_ANSWER_LIMIT_S = 30.0


class ClassArchiveError(Exception):
    """The archive could not be created; the text says why."""


def make_spark(folder: Path, target: Path) -> None:
    """Run a job and a query in a separate session in ``folder``, and archive the classes they used in ``target``."""
    session = sql_session(Settings(dir=folder, slots=2), "classes", java_options=(_RECORDED, "-Xlog:disable"))
    try:
        context = session.sparkContext
        context.parallelize([0, 1], 2).map(str).collect()
        session.range(2).selectExpr("sum(id)").collect()
        gateway = context._gateway
        assert gateway is not None
        _dump(gateway.jvm.java.lang.ProcessHandle.current().pid(), target)
    finally:
        stop_session(session)


def make_kafka(folder: Path, target: Path) -> None:
    """Pass a record through a separate broker in ``folder``, and archive the classes it used in ``target``."""
    os.environ["JDK_JAVA_OPTIONS"] = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {_RECORDED}".strip()
    broker = EmbeddedBroker(folder)
    try:
        with broker.used() as bootstrap_servers:
            KafkaAdmin(bootstrap_servers, broker.login()).create_topic("records", 1)
            server = {"bootstrap.servers": bootstrap_servers, "log_level": 0, **broker.login()}
            producer = Producer({**server, "transactional.id": "records"})
            producer.init_transactions(_ANSWER_LIMIT_S)
            producer.begin_transaction()
            producer.produce("records", b"value", b"key")
            producer.commit_transaction(_ANSWER_LIMIT_S)
            consumer = Consumer({**server, "group.id": "records", "auto.offset.reset": "earliest"})
            consumer.subscribe(["records"])
            consumer.consume(timeout=_ANSWER_LIMIT_S)
            consumer.close()
            _dump(broker.files.read_status()["kafka_pid"], target)
    finally:
        broker.stop()  # before its folder is removed


def make(program: str, maker: Callable[[Path, Path], None]) -> None:
    """Have ``maker`` write the archive of ``program``, replacing an existing one; takes about ten seconds.

    Raises:
        ClassArchiveError: ``jcmd`` is missing, or Java refused.
        MissingJavaError, JarsError, BrokerStartError: What the program needs to start is missing.
        KafkaAdminError, KafkaException: The broker did not answer in time.
    """
    target = class_archive(program)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="weir-classes-") as folder:
        maker(Path(folder), target)


def _dump(pid: int, target: Path) -> None:
    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [java_executable("jcmd"), str(pid), "VM.cds", "dynamic_dump", str(part)],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_DUMP_LIMIT_S,
        )
    except MissingJavaError:
        raise ClassArchiveError("there is no jcmd next to java; install a JDK, which has one") from None
    except subprocess.TimeoutExpired:
        raise ClassArchiveError(f"Java took longer than {_DUMP_LIMIT_S:.0f} s") from None
    if done.returncode or not part.is_file():
        raise ClassArchiveError(f"Java did not create it: {done.stdout.strip()[-300:]}")
    part.replace(target)


def main() -> int:
    for program, maker in (("spark", make_spark), ("kafka", make_kafka)):
        try:
            make(program, maker)
            print(f"{program}'s classes: {class_archive(program)}", flush=True)
        except (ClassArchiveError, BrokerStartError, JarsError, KafkaAdminError, KafkaException) as error:
            print(f"{program}'s classes: {error}; without them it starts a second or two later", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
