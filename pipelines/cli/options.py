"""Options that the commands share, and the settings that result from them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.pipelines.operations.errors import OperationError

if TYPE_CHECKING:
    from weir.infra.settings import Settings

DEBUG, DIRECTORY, PROGRAM, SERVERS = "weir.debug", "weir.directory", "weir.program", "weir.servers"
"""Under which names a command line's context has what its messages depend on."""


def remember(name: str) -> Callable[[typer.Context, Any], Any]:
    """A callback that keeps an option's or argument's value in the context."""

    def keep(context: typer.Context, value: Any) -> Any:
        context.meta[name] = value
        return value

    return keep


DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        show_default=".weir",
        callback=remember(DIRECTORY),
        help="The folder that holds everything a run leaves behind.",
    ),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", callback=remember(DEBUG), help="Show the stack trace of an error too.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, for example slots=4 or kafka.sasl.username=me; can be repeated.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AppArgument = Annotated[
    str,
    typer.Argument(metavar="APP", callback=remember(PROGRAM), help="The id of an application that has run in DIR."),
]
ReferenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP",
        callback=remember(PROGRAM),
        help="Where the Application object is, for example my_jobs.clicks:app.",
    ),
]
ServersOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        callback=remember(SERVERS),
        help="Your own Kafka; by default, the folder's embedded broker.",
    ),
]


def confirm(question: str, command: str) -> None:
    """Ask for confirmation; ends the command unless the answer is yes.

    Raises:
        OperationError: Nobody can answer; the text names ``command`` with ``--yes``.
    """
    try:
        is_agreed = typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)
        raise OperationError(
            f"nothing was changed, because there is no terminal to ask at; to confirm, run `{command} --yes`"
        ) from None
    if not is_agreed:
        raise typer.Abort


def parse_assignments(assignments: Sequence[str], *, option: str = "--set", example: str = "slots=4") -> dict[str, str]:
    """``["a=1", "b.c=x=y"]`` as ``{"a": "1", "b.c": "x=y"}``.

    Raises:
        OperationError: An item has no ``=`` or no name before it.
    """
    parsed: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise OperationError(f"{option} takes KEY=VALUE, for example {option} {example}, but got {assignment!r}")
        parsed[key.strip()] = value
    return parsed


def load_settings(
    directory: Path | None,
    overrides: Mapping[str, str] | None = None,
    *,
    bootstrap_servers: str | None = None,
    writes: bool = False,
) -> Settings:
    """The settings of a folder; flags win over ``WEIR_*`` variables, and those over ``weir.toml``.

    What the command writes from here on is closed to others, as the setting ``umask`` says.

    Raises:
        OperationError: The command ``writes`` in the folder, and it cannot be written; or a flag holds a secret.
    """
    from weir.infra.process import close_files
    from weir.infra.settings import Settings

    refuse_secrets(overrides or {})
    servers = {} if bootstrap_servers is None else {"bootstrap_servers": bootstrap_servers}
    settings = Settings.load(directory, overrides={**(overrides or {}), **servers})
    close_files(settings.umask)
    if writes:
        require_writable(settings)
    return settings


def refuse_secrets(overrides: Mapping[str, str]) -> None:
    """Raises ``OperationError`` for a secret on the command line, which every user of the machine can read."""
    from weir.infra.settings import PREFIX, is_secret, mask_url

    for key, value in overrides.items():
        table, dot, name = key.partition(".")
        if is_secret(name or key) or mask_url(value) != value:
            place = f"as {name} under [{table}]" if dot else f"as {key}"
            variable = "" if table == "spark" else f", or set {PREFIX}{key.replace('.', '_').upper()}"
            raise OperationError(
                f"--set {key}=... shows its value to every user of this machine, in the list of processes; put it into "
                f"weir.toml {place}{variable}"
            )


def require_writable(settings: Settings) -> None:
    """Raises ``OperationError`` if nothing can be written in the settings' folder, or where it would be made."""
    place = settings.dir
    try:
        while not _is_there(place):
            place = place.parent
        with tempfile.TemporaryFile(dir=place):
            pass
    except NotADirectoryError as error:
        raise OperationError(
            f"{place} is a file, and Weir needs a folder; name one with `--dir DIR` or the variable WEIR_DIR"
        ) from error
    except OSError as error:
        raise OperationError(
            f"{settings.dir} cannot be written ({error.strerror}); name another folder with `--dir DIR` or the "
            f"variable WEIR_DIR, or make {place} writable"
        ) from error


def _is_there(path: Path) -> bool:
    """Whether a file or folder is there; raises ``OSError`` if that cannot be seen."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
