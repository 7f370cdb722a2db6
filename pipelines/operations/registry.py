"""Which applications a folder knows: ``<dir>/applications/<id>.json`` says where each one's program is.

Written when an application starts. Queries need it, because finding a key in a store takes the topology. An entry says
which code is imported, so one that other users could have written is not read.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import stat
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from weir.infra.settings import Settings
from weir.pipelines.application import Application, load_application, renamed_example
from weir.pipelines.operations.errors import OperationError
from weir.state.commit.log import COMMITS
from weir.state.commit.protocol import newest_commit
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Where an application's program is."""

    application: str
    reference: str
    """``module:attribute``."""
    import_from: str
    """The folder from which the module was imported at the start."""


_INSTALLED = ("site-packages", "dist-packages")


def _entries(settings: Settings) -> Folder:
    return folder_at(settings.dir / "applications")


def _name(application: str) -> str:
    return f"{application}.json"


def load_reference(reference: str, import_from: Path | None = None) -> Application:
    """The application at ``module:attribute``; the module may be in ``import_from``, by default the current folder."""
    folder = str(import_from or Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return load_application(reference)


def imported_from(reference: str) -> Path | None:
    """The folder from which the module of ``module:attribute`` was imported; None if it was not imported from a file,
    or if it is installed: environments come and go."""
    name = reference.partition(":")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return None
    path = Path(file).absolute()
    up = name.count(".") + (path.stem == "__init__")
    folder = path.parents[up] if up < len(path.parents) else None
    return None if folder is None or folder.name in _INSTALLED else folder


def register(settings: Settings, application: str, reference: str) -> None:
    """Record where the program of ``application`` is, which has been loaded; replaces an older entry atomically."""
    folder = imported_from(reference) or Path.cwd()
    registration = Registration(application=application, reference=reference, import_from=str(folder))
    content = json.dumps(asdict(registration), indent=2) + "\n"
    _entries(settings).put(_name(application), content.encode())


def forget(settings: Settings, application: str) -> None:
    """Remove the entry, if there is one."""
    _entries(settings).delete([_name(application)])


def applications(settings: Settings) -> list[str]:
    """The ids of all applications that were started or have tables in the folder, sorted."""
    started = {file.name.removesuffix(".json") for file in _entries(settings).list() if file.name.endswith(".json")}
    warehouse = folder_at(settings.warehouse)
    written = {name for name in warehouse.folders() if COMMITS.name in (warehouse / name).folders()}
    return sorted(started | written)


def require(settings: Settings, application: str) -> str:
    """``application`` itself if the folder knows it.

    Raises:
        OperationError: It does not; the text names the applications it knows.
    """
    known = applications(settings)
    if application in known:
        return application
    if not known:
        raise OperationError(
            f"nothing has run in {settings.dir} yet; start with `weir demo` or `weir run MODULE:APP`, "
            "or name another folder with `--dir DIR`"
        )
    near = difflib.get_close_matches(application, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
    raise OperationError(f"no application {application!r} in {settings.dir}; {hint}")


def registered_application(settings: Settings, application: str) -> Application:
    """The program of an application that has run in the folder, with the names that its stores have in the newest
    commit; raises what ``registered_reference`` raises."""
    return _load(_registration(settings, application)).over(newest_commit(folder_at(settings.warehouse), application))


def registered_reference(settings: Settings, application: str) -> str:
    """The ``module:attribute`` of an application that has run in the folder, from which it has just been loaded.

    Raises:
        OperationError: The folder does not know it, has no program registered for it, or other users could have written
            what it has.
    """
    registration = _registration(settings, application)
    _load(registration)
    return registration.reference


def reference_of(settings: Settings, application: str) -> str | None:
    """The ``module:attribute`` of the program that last started as ``application``, or None if it is not registered."""
    try:
        return _registration(settings, application).reference
    except OperationError:
        return None


def _load(registration: Registration) -> Application:
    return load_reference(registration.reference, Path(registration.import_from))


def _registration(settings: Settings, application: str) -> Registration:
    require(settings, application)
    _require_own(settings, application)
    try:
        found = Registration(**json.loads(_entries(settings).get(_name(application))))
    except (OSError, ValueError, TypeError) as error:
        raise OperationError(
            f"no program is registered for {application!r} in {settings.dir}; start it once with `weir run MODULE:APP`"
        ) from error
    return replace(found, reference=f"weir.{found.reference}") if _names_our_example(found) else found


def _require_own(settings: Settings, application: str) -> None:
    """Raises ``OperationError`` if the entry may be from a user other than this one, root, and those whom the setting
    ``umask`` lets write."""
    folder, closed = settings.dir / "applications", int(settings.umask, 8)
    for path in (settings.dir, folder, folder / _name(application)):
        if not path.exists():
            return
        found, name = path.stat(), shlex.quote(str(path))
        is_of_group = not closed & stat.S_IWGRP and found.st_gid in os.getgroups()
        if found.st_uid not in (os.geteuid(), 0) and not is_of_group:
            raise OperationError(
                f"{path}, from which the program of {application!r} would be imported, belongs to another user; name "
                f"the program yourself with `weir run MODULE:APP`, or take it over with `chown {os.geteuid()} {name}`"
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & closed:
            raise OperationError(
                f"{path}, from which the program of {application!r} would be imported, is one that others can write; "
                f"close it to them with `chmod go-w {name}`"
            )


def _names_our_example(found: Registration) -> bool:
    """Whether the reference is the former name of one of Weir's examples, not a module of the user's own project."""
    module = found.reference.partition(":")[0]
    ours, place = renamed_example(module), Path(found.import_from, *module.split("."))
    theirs = (place.with_suffix(".py"), place / "__init__.py")
    return ours is not None and not any(path.exists() and not path.samefile(ours) for path in theirs)
