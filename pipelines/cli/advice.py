"""Completes the commands that messages advise, so that each can be typed as it stands: with the program, and with the
folder and brokers that this command line names."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer

from weir.pipelines.cli.options import DIRECTORY, PROGRAM, SERVERS, load_settings
from weir.pipelines.errors import PROGRAM as MODULE_APP

_COMMAND = re.compile(r"`(weir [^`]+)`")


def advised(text: str, context: typer.Context) -> str:
    """``text`` with complete commands; ``context`` is that of the command line or of one of its commands."""
    from weir.pipelines.operations.advice import addressed

    program: str | None = context.meta.get(PROGRAM)
    if program is not None and MODULE_APP in text:
        text = addressed(text, load_settings(context.meta.get(DIRECTORY)), program)
    given = {"--dir": context.meta.get(DIRECTORY), "--bootstrap-servers": context.meta.get(SERVERS)}
    options = {name: str(value) for name, value in given.items() if value is not None}
    return _COMMAND.sub(lambda found: f"`{_with(options, found[1], context)}`", text) if options else text


def _with(options: dict[str, str], command: str, context: typer.Context) -> str:
    """``command`` with those of the options that it takes and does not have."""
    known: Any = context.find_root().command
    words = command.split()
    for word in words[1:]:
        if word not in getattr(known, "commands", {}):
            break
        known = known.commands[word]
    taken = {name for parameter in known.params for name in parameter.opts}
    added = [f" {name} {shlex.quote(value)}" for name, value in options.items() if name in taken - set(words)]
    return command + "".join(added)
