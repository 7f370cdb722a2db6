"""Puts the names of programs into the commands that messages advise.

Errors come from places that know an application by its id alone, and write ``MODULE:APP`` for its program and
``OLD_MODULE:APP`` for the one that ran before it; whoever shows them knows how these were named.
"""

from __future__ import annotations

import re

from weir.infra.settings import Settings
from weir.pipelines.errors import ApplicationLoadError
from weir.pipelines.operations.registry import load_reference, reference_of

_PROGRAM = re.compile(r"\b(OLD_)?MODULE:APP\b")


def addressed(text: str, settings: Settings, program: str) -> str:
    """``text`` with the names of programs where they are known.

    ``program`` is what the user named: ``module:attribute``, or the id of an application that has run in the folder.
    """
    if not _PROGRAM.search(text):
        return text
    is_reference = ":" in program
    try:
        last = reference_of(settings, load_reference(program).id if is_reference else program)
    except ApplicationLoadError:
        return text
    named = program if is_reference else last
    return _PROGRAM.sub(lambda found: (last if found[1] else named) or found[0], text)
