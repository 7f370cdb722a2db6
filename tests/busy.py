"""Other processes that want all processors."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

COUNT = 4


@contextmanager
def busy_processors() -> Iterator[None]:
    """``COUNT`` processes run without a pause during the block; none is left after it."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(COUNT)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
