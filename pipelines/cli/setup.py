"""``weir setup``: fetches the Java jars, which Python packages cannot include, and makes Java start faster."""

from __future__ import annotations

from weir.pipelines.cli.options import DebugOption
from weir.pipelines.cli.render import console


def setup(debug: DebugOption = False) -> None:
    """Fetch the Java jars of Spark's Delta tables and of the embedded Kafka broker, once per environment.

    Needs Java 17 or newer and, the first time, the network. Running it again keeps what is already there.
    """
    from weir.infra import class_archives, jars

    for name in jars.DEFAULT_SETS:
        jars.fetch(name)
    class_archives.main()
    console.print("ready: start with `weir demo` or `weir run MODULE:APP`", markup=False)
