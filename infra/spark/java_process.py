"""Spark's Java process on this host, started by the command that ``spark-submit`` composes, without its scripts.

They would start another Java process to compose it, and name ``SPARK_HOME``, for which Python workers load PySpark from
an archive without bytecode: 0.7 s of processor time for each. How a session uses the process is in ``session``.
"""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from weir.infra.java import java_executable

LOOK_S = 0.005
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""What Spark's launcher adds (``JavaModuleOptions``); a test asks it."""
MAIN = "org.apache.spark.deploy.SparkSubmit"
_CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""By this variable Spark learns into which file to write where it can be reached."""


class JavaEndedError(Exception):
    """The process has ended before it could be reached."""


class JavaProcess:
    """A Java process that waits for a driver; it ends when its standard input does."""

    def __init__(self, properties: Mapping[str, str], output: int, connection: Path) -> None:
        """Start it; ``output`` is the file descriptor of what it says, ``connection`` the file for where it can be
        reached. Ctrl-C in the terminal is for the driver to handle, so it has a session of its own."""
        self._connection = connection
        variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        self.process = subprocess.Popen(
            command(spark_home(), properties),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**variables, _CONNECTION: str(connection), "SPARK_CONNECT_MODE": "0"},
            start_new_session=True,
        )

    def connection(self) -> tuple[int, str]:
        """Its port and the secret that it asks for, once it is ready.

        Raises:
            JavaEndedError: It has ended before.
        """
        while not self._connection.is_file():
            if self.process.poll() is not None:
                raise JavaEndedError
            time.sleep(LOOK_S)
        written = self._connection.read_bytes()
        self._connection.unlink()
        port, length = struct.unpack_from("!ii", written)
        return port, written[8 : 8 + length].decode()

    def end(self) -> None:
        """End it, though nobody has connected."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def spark_home() -> Path:
    """The folder of PySpark, which has Spark's jars."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent  # as an archive of classes has it


def command(home: Path, properties: Mapping[str, str]) -> Sequence[str]:
    """What starts Spark with ``properties``, of which some are for Java itself."""
    jars = home / "jars"
    first = properties.get("spark.driver.extraClassPath")
    class_path = [*([first] if first else ()), f"{home / 'conf'}", *map(str, jars.glob("slf4j-api-*.jar")), f"{jars}/*"]
    given = (("--conf", f"{name}={value}") for name, value in properties.items())
    return [
        java_executable(),
        "-cp",
        os.pathsep.join(class_path),
        f"-Xmx{properties['spark.driver.memory']}",
        *shlex.split(properties.get("spark.driver.extraJavaOptions", "")),
        *_OPTIONS,
        MAIN,
        *(word for pair in given for word in pair),
        "pyspark-shell",
    ]
