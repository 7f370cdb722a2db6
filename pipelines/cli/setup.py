"""``weir setup``: fetches the Java jars, which Python packages cannot include, and makes Java start faster."""

from __future__ import annotations

from weir.pipelines.cli.options import DebugOption
from weir.pipelines.cli.render import console, notices


def setup(debug: DebugOption = False) -> None:
    """Fetch the Java jars of Spark's Delta tables and of the embedded Kafka broker, once per environment.

    Then archive Java's classes, so that Spark and Kafka start sooner. Needs Java 17 or newer and, the first time, the
    network. Running it again keeps what is already there.
    """
    from weir.infra import class_archives, jars
    from weir.infra.java import class_archive

    for name in jars.DEFAULT_SETS:
        jars.fetch(name)
    if not all(class_archive(program).is_file() for program in ("spark", "kafka")):
        notices.print("archiving the classes of Spark and Kafka, so that they start sooner (half a minute, once)")
        class_archives.main()
    console.print("ready: start with `weir demo` or `weir run MODULE:APP`", markup=False)
