"""``weir setup``: what Python's packages cannot bring, the Java jars, and what makes Java start sooner."""

from __future__ import annotations

from weir.pipelines.cli.options import DebugOption
from weir.pipelines.cli.render import console


def setup(debug: DebugOption = False) -> None:
    """Fetch the Java jars of Spark's Delta tables and of the embedded Kafka broker, once per environment.

    Needs Java 17 or newer and, the first time, the network. Run it again at any time: what is there stays.
    """
    from weir.infra import class_archives, jars

    for name in jars.DEFAULT_SETS:
        jars.fetch(name)
    class_archives.main()
    console.print("ready: start with `weir demo` or `weir run MODULE:APP`", markup=False)
