"""Java jars, fetched once by the Ivy command line that ships inside PySpark (``python -m weir.infra.jars [SET ...]``).

A set is stored in ``<sys.prefix>/share/weir/jars/<set>/`` with a marker that names the versions it was made from. Ivy's
own cache is shared by all of the user's environments, so that a second set-up downloads nothing.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from weir.infra.java import MissingJavaError, java_executable
from weir.infra.settings import cache_home

SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "delta": ("io.delta:delta-spark_4.2_2.13:4.4.0",),
        # What Hadoop's client for S3 needs of Amazon's, 13 MB; the bundle that it names has all of Amazon's services.
        "s3": (
            "org.apache.hadoop:hadoop-aws:3.5.0",
            "software.amazon.awssdk:s3-transfer-manager:2.35.4",
            "software.amazon.awssdk:sts:2.35.4",
            "software.amazon.awssdk:apache-client:2.35.4",
            "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
        ),
        # Kafka logs through an interface; the second jar prints the messages.
        "kafka": ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36"),
        "streams": ("org.apache.kafka:kafka-streams:4.3.1", "org.slf4j:slf4j-simple:1.7.36"),
        "flink": (
            "org.apache.flink:flink-clients:2.2.1",
            "org.apache.flink:flink-table-api-java-bridge:2.2.1",
            "org.apache.flink:flink-table-planner_2.12:2.2.1",
            "org.apache.flink:flink-table-runtime:2.2.1",
            "org.apache.flink:flink-statebackend-rocksdb:2.2.1",
            "org.apache.flink:flink-connector-base:2.2.1",
            "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
            "org.apache.flink:flink-json:2.2.1",
            "org.slf4j:slf4j-simple:1.7.36",
        ),
        # Spark's source and sink for Kafka topics.
        "spark-kafka": ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
    }
)
DEFAULT_SETS = ("delta", "kafka")
_MARKER = "versions.json"
_ATTEMPTS = 3
# Large, and part of every PySpark, or not needed: not worth downloading just to be deleted.
_EXCLUDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "delta": ('org="org.apache.hadoop"', 'org="org.apache.parquet"', 'org="org.scala-lang"'),
        "spark-kafka": ('org="org.apache.hadoop"', 'org="org.scala-lang"'),
        "s3": ('org="software.amazon.awssdk" module="bundle"', 'org="software.amazon.awssdk.crt"'),
    }
)


class JarsError(Exception):
    """A set of jars is missing or could not be fetched."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"Java jars {self.name!r}: {self.reason}"


def jars(name: str) -> list[Path]:
    """The jars of a set that has been fetched.

    Raises:
        JarsError: The set is missing or has other versions; the text names the command that fetches it.
    """
    if not _is_complete(name):
        raise JarsError(name, f"not fetched yet; run {_command(name)}")
    return sorted(_folder(name).glob("*.jar"))


def fetch(name: str) -> list[Path]:
    """Fetch a set unless it is complete, and return its jars; prints its progress.

    Raises:
        JarsError: Ivy failed three times; the text includes its last lines.
        MissingJavaError: No Java.
    """
    if name not in SETS:
        raise JarsError(name, f"there is no such set; choose from {', '.join(SETS)}")
    if _is_complete(name):
        print(f"jars {name}: complete", flush=True)
        return jars(name)
    target = _folder(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise JarsError(
            name, f"{error.filename} is not writable; install weir-streams in a virtual environment"
        ) from None
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as fresh:
        _retrieve(name, Path(fresh))
        if name in _EXCLUDED:
            _drop_what_pyspark_has(Path(fresh))
        (Path(fresh) / _MARKER).write_text(json.dumps(SETS[name]), encoding="utf-8")
        Path(fresh).chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        Path(fresh).rename(target)
        Path(fresh).mkdir()  # the context manager removes it
    print(f"jars {name}: {len(jars(name))} in {target}", flush=True)
    return jars(name)


def main(arguments: Sequence[str]) -> int:
    try:
        for name in arguments or DEFAULT_SETS:
            fetch(name)
    except (JarsError, MissingJavaError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _command(name: str) -> str:
    """What fetches a set."""
    return "`weir setup`" if name in DEFAULT_SETS else f"`{sys.executable} -m weir.infra.jars {name}`"


def _folder(name: str) -> Path:
    return Path(sys.prefix) / "share" / "weir" / "jars" / name


def _is_complete(name: str) -> bool:
    marker = _folder(name) / _MARKER
    return marker.is_file() and tuple(json.loads(marker.read_text(encoding="utf-8"))) == SETS[name]


def _pyspark_jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsError("pyspark", "PySpark is not installed in this environment; reinstall weir-streams")
    return Path(spec.origin).parent / "jars"


def _retrieve(name: str, target: Path) -> None:
    ivy = next(iter(_pyspark_jars().glob("ivy-*.jar")), None)
    if ivy is None:
        raise JarsError(name, "this PySpark does not include Ivy; install PySpark from its pip package")
    module = target / "ivy.xml"
    module.write_text(_ivy_module(name), encoding="utf-8")
    command = [
        java_executable(),
        "-jar",
        str(ivy),
        "-ivy",
        str(module),
        "-confs",
        "default",
        "-types",
        "jar",
        "bundle",
        "-cache",
        str(cache_home() / "weir" / "ivy"),
        "-retrieve",
        f"{target}/[artifact]-[revision].[ext]",
    ]
    print(f"jars {name}: {', '.join(SETS[name])} and their dependencies", flush=True)
    for attempt in range(1, _ATTEMPTS + 1):
        last_lines: list[str] = []
        downloads = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout or ():
                last_lines = [*last_lines[-14:], line.rstrip()]
                if "[SUCCESSFUL ]" in line:
                    downloads += 1
                    if downloads % 10 == 0:
                        print(f"jars {name}: {downloads} downloaded", flush=True)
        if process.returncode == 0 and any("artifacts copied" in line for line in last_lines):
            module.unlink()
            return
        print(f"jars {name}: attempt {attempt} of {_ATTEMPTS} failed", flush=True)
    raise JarsError(
        name,
        f"Ivy could not fetch {', '.join(SETS[name])}; check the network, then run {_command(name)} again. Its last "
        "lines:\n" + "\n".join(last_lines),
    )


def _ivy_module(name: str) -> str:
    excluded = "".join(f"<exclude {what}/>" for what in _EXCLUDED.get(name, ()))
    dependencies = "".join(
        f'<dependency org="{organisation}" name="{module}" rev="{revision}" conf="default">{excluded}</dependency>'
        for organisation, module, revision in (coordinate.split(":") for coordinate in SETS[name])
    )
    return (
        f'<ivy-module version="2.0"><info organisation="weir" module="{name}"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _drop_what_pyspark_has(folder: Path) -> None:
    present = {_artifact(jar) for jar in _pyspark_jars().glob("*.jar")}
    for jar in folder.glob("*.jar"):
        if _artifact(jar) in present:
            jar.unlink()


def _artifact(jar: Path) -> str:
    return re.split(r"-\d", jar.name, maxsplit=1)[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
