"""Archives with an environment for the executors of a cluster: what Weir and a program import, for their own Python.

Spark hands one to each executor (``spark.archives``), which unpacks it in its folder. ``bin/python`` in it runs the
Python of the executor's host with what is packed beside it.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

NAME = "environment"
"""The folder of an executor in which it unpacks the archive."""
PYTHON = f"./{NAME}/bin/python"
ENDINGS = (".tar.gz", ".tgz")
"""Spark tells by the name how to unpack; from any other archive ``bin/python`` comes without the right to be run."""
_COMPRESSION = 1
"""Higher ones make the archive a tenth smaller and take twice as long."""
_COMMAND = f"python{sys.version_info.major}.{sys.version_info.minor}"
_SCRIPT = f"""\
#!/bin/sh
command -v {_COMMAND} >/dev/null || {{ echo "there is no {_COMMAND} here, for which $0 was packed" >&2; exit 127; }}
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" exec {_COMMAND} "$@"
"""


def write_archive(output: Path, files: Mapping[str, Path], on_file: Callable[[int], None] = lambda done: None) -> int:
    """Write ``files``, by the path below the folder that Python imports from; returns the archive's size in bytes.

    It takes the place of an older one once it is whole. ``on_file`` is told how many files are packed.
    """
    with tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", delete=False) as half:
        try:
            with tarfile.open(fileobj=half, mode="w:gz", compresslevel=_COMPRESSION) as archive:
                script = tarfile.TarInfo("bin/python")
                script.size, script.mode = len(_SCRIPT), 0o755
                archive.addfile(script, io.BytesIO(_SCRIPT.encode()))
                for done, (name, path) in enumerate(sorted(files.items()), 1):
                    entry = archive.gettarinfo(path, f"lib/{name}")
                    entry.uid = entry.gid = 0
                    entry.uname = entry.gname = ""
                    entry.mode |= 0o444
                    with path.open("rb") as content:
                        archive.addfile(entry, content)
                    on_file(done)
            os.replace(half.name, output)
        except BaseException:
            os.unlink(half.name)
            raise
    return output.stat().st_size
