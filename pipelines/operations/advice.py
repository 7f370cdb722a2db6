"""Puts the names of programs into the commands that messages advise (``weir.pipelines.errors.naming``)."""

from __future__ import annotations

from weir.infra.settings import Settings
from weir.pipelines.errors import OLD_PROGRAM, PROGRAM, naming
from weir.pipelines.operations.registry import load_reference, reference_of


def addressed(text: str, settings: Settings, program: str) -> str:
    """``text`` with the names of programs where they are known.

    ``program`` is what the user named: ``module:attribute``, or the id of an application that has run in the folder.
    """
    if PROGRAM not in text:
        return text
    if ":" not in program:
        last = reference_of(settings, program)
        return naming(text, program=last, old=last)
    old = reference_of(settings, load_reference(program).id) if OLD_PROGRAM in text else None
    return naming(text, program=program, old=old)
