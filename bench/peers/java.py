"""What peers in Java share: jars, the compiler, options of the virtual machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.peer import NotRunError
from weir.infra.jars import JarsError, fetch
from weir.infra.java import MissingJavaError, java_executable

SOURCES = Path(__file__).parent.parent / "java"
_HEAP = "-Xmx2g"


def class_path(jars: str, sources: Sequence[str], folder: Path) -> str:
    """Fetch a set of jars and compile ``sources`` against it into ``folder``; returns the class path of both.

    Raises:
        NotRunError: No JDK, no jars, or the sources do not compile.
    """
    try:
        compiler = java_executable("javac")
        with contextlib.redirect_stdout(sys.stderr):
            found = fetch(jars)
    except (JarsError, MissingJavaError) as error:
        raise NotRunError(str(error)) from error
    found_path = ":".join(map(str, (*found, folder)))
    command = [compiler, "-d", str(folder), "-cp", found_path, *(str(SOURCES / source) for source in sources)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotRunError(f"{', '.join(sources)} does not compile:\n{done.stderr}")
    return found_path


def java(path: str, main: str, state: Path, *options: str) -> list[str]:
    """The beginning of a command line that runs the class ``main``; native libraries are unpacked in ``state``."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return [java_executable(), _HEAP, quiet, f"-Djava.io.tmpdir={state}", *options, "-cp", path, main]
