"""An archive of Spark's classes, so that sessions come up sooner (``python -m infra.spark.class_archive``).

Loading, checking and linking classes is most of what Java does in its first seconds; Java can keep the outcome in a
file (JEP 350) and map it at the next start: 3.9 s of CPU until the first job in place of 5.9. The archive is made by
running a job and asking that Java process, by ``jcmd``, for one. Without it everything works, more slowly; one of
another Java or of other jars is passed over by Java, in silence.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from infra.java import MissingJavaError, class_archive, java_executable
from infra.settings import Settings
from infra.spark.session import slot_session, stop_session

_DUMP_LIMIT_S = 120.0


class ClassArchiveError(Exception):
    """The archive could not be made; the text says why."""


def make(target: Path) -> None:
    """Run a job in a session of its own and write the classes it needed to ``target``; takes about ten seconds.

    Raises:
        ClassArchiveError: ``jcmd`` is missing, or Java refused.
        MissingJavaError: No Java.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="weir-classes-") as folder:
        session = slot_session(Settings(dir=Path(folder), slots=2), "classes",
                               java_options=("-XX:+RecordDynamicDumpInfo",))
        try:
            context = session.sparkContext
            context.parallelize([0, 1], 2).map(str).collect()
            gateway = context._gateway
            assert gateway is not None
            _dump(gateway.jvm.java.lang.ProcessHandle.current().pid(), target)
        finally:
            stop_session(session)


def _dump(pid: int, target: Path) -> None:
    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        done = subprocess.run([java_executable("jcmd"), str(pid), "VM.cds", "dynamic_dump", str(part)], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_DUMP_LIMIT_S)
    except MissingJavaError:
        raise ClassArchiveError("there is no jcmd beside java; a JDK has one") from None
    except subprocess.TimeoutExpired:
        raise ClassArchiveError(f"Java took longer than {_DUMP_LIMIT_S:.0f} s") from None
    if done.returncode or not part.is_file():
        raise ClassArchiveError(f"Java made none: {done.stdout.strip()[-300:]}")
    part.replace(target)


def main() -> int:
    try:
        make(class_archive())
        print(f"Spark's classes: {class_archive()}", flush=True)
    except ClassArchiveError as error:
        print(f"Spark's classes: {error}; sessions start without, about two seconds later", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
