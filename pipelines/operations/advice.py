"""Puts the names of programs into the commands that messages advise.

Errors come from places that know an application by its id alone, and write ``MODULE:APP`` for its program and
``OLD_MODULE:APP`` for the one that ran before it; whoever shows them knows how these were named.
"""

from __future__ import annotations

import re

from weir.infra.settings import Settings
from weir.pipelines.operations.registry import load_reference, reference_of

_PROGRAM = re.compile(r"\b(OLD_)?MODULE:APP\b")


def addressed(text: str, settings: Settings, program: str) -> str:
    """``text`` with the names of programs where they are known.

    ``program`` is what the user named: ``module:attribute``, or the id of an application that has run in the folder.
    """

    def name(found: re.Match[str]) -> str:
        is_old, is_reference = found[1] is not None, ":" in program
        if is_reference and not is_old:
            return program
        return reference_of(settings, load_reference(program).id if is_reference else program) or found[0]

    return _PROGRAM.sub(name, text)
