"""Finding Java. Starting it is up to its users: the broker, the jars, Spark."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from weir.infra.settings import java_home


class MissingJavaError(Exception):
    """There is no Java on this machine."""

    def __str__(self) -> str:
        return (
            "no Java found (neither JAVA_HOME nor java on the PATH): install a "
            "headless JDK 17 or newer, on Debian and Ubuntu with `apt-get install openjdk-17-jdk-headless`"
        )


def java_executable(name: str = "java") -> str:
    """The path of ``java`` (or ``javac``): from ``JAVA_HOME``, else from the ``PATH``.

    Raises:
        MissingJavaError: There is none.
    """
    home = java_home()
    if home is not None:
        candidate = Path(home) / "bin" / name
        if candidate.is_file():
            return str(candidate)
    found = shutil.which(name)
    if found is None:
        raise MissingJavaError
    return found


def class_archive(program: str) -> Path:
    """The archive of ``spark``'s or ``kafka``'s classes, once ``weir.infra.class_archives`` has created it."""
    return Path(sys.prefix) / "share" / "weir" / f"{program}-classes.jsa"


def shared_classes(program: str) -> tuple[str, ...]:
    """Java's options for using the archive of ``program``; none if there is no archive."""
    archive = class_archive(program)
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable") if archive.is_file() else ()
