"""Places in the user's program: the file and line of the call that made a node, for errors to name."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path

_OWN, _EXAMPLES = "weir.", "weir.pipelines.examples."
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Place:
    """A line of a program."""

    file: str
    line: int

    @classmethod
    def of_call(cls) -> Place | None:
        """Where the program has called Weir: the innermost frame outside of Weir's own modules; Weir's examples are
        programs too. None if there is none.

        Reads only the frames' names, no source: that is for ``str``.
        """
        frame = sys._getframe(1)
        while True:
            module = frame.f_globals.get("__name__") or ""
            if not module.startswith(_OWN) or module.startswith(_EXAMPLES):
                return cls(frame.f_code.co_filename, frame.f_lineno)
            if frame.f_back is None:
                return None
            frame = frame.f_back

    def __str__(self) -> str:
        """``shop.py:42: orders.join(...)``, with the file relative to the current folder if it is below that."""
        path = Path(self.file)
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        source = linecache.getline(self.file, self.line).strip()
        if len(source) > _SHOWN_CHARACTERS:
            source = source[: _SHOWN_CHARACTERS - 3] + "..."
        elif source.endswith(("(", "[", "{")):
            source += "..."
        return f"{path}:{self.line}: {source}" if source else f"{path}:{self.line}"
