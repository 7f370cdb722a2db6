"""What executors import of a program, packed into an archive for them: Weir, the program and what both need.

A program says nowhere what it needs. So it is imported, as an executor does it, in a process of its own; whatever is
loaded then is packed: a module's distribution with those that it requires, or, where it has none as in a folder of
one's own, its whole package. Of Weir's own requirements those are left out that only a driver imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from weir.infra.spark.archives import ENDINGS, write_archive
from weir.pipelines.application import load_application
from weir.pipelines.operations.errors import OperationError

WEIR = "weir-streams"
_EXTRAS = {WEIR: ("", "registry")}
"""What a program asks for when it reads Avro or Protobuf is loaded as it runs."""
_OF_DRIVERS = {
    *("dagster", "dagster-pipes", "dagster-webserver", "delta-spark", "pandas", "prometheus-client", "pyarrow"),
    *("pydantic", "requests", "rich", "sqlalchemy", "tenacity", "textual", "typer", "packaging"),
}
_LEFT_OUT = ("pyspark/jars/",)
"""Every executor has these already, half a gigabyte."""
_OF_PYTHON = Path(sysconfig.get_path("stdlib"))
_LOADED = """
import json, sys
before, sys.path[:] = set(sys.modules), json.loads(sys.argv[1])
import weir.pipelines.spark.held, weir.pipelines.spark.restore_jobs
import weir.pipelines.spark.snapshot_jobs, weir.pipelines.spark.standby_jobs
from weir.pipelines.application import load_application
load_application(sys.argv[2])
modules = {name: sys.modules[name] for name in set(sys.modules) - before - sys.stdlib_module_names if "." not in name}
print(json.dumps({
    name: list(getattr(module, "__path__", ())) or [module.__file__]
    for name, module in modules.items() if getattr(module, "__path__", None) or getattr(module, "__file__", None)
}))
"""


@dataclass(frozen=True, kw_only=True)
class Package:
    """An archive that was written."""

    path: Path
    size_bytes: int
    own: tuple[str, ...]
    """The modules and packages that no installed distribution has: the program's."""
    distributions: tuple[str, ...]


def packaged(
    reference: str,
    output: Path | None = None,
    *,
    also: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Package:
    """Write what executors need for the application at ``reference`` to ``output``, by default ``ID.tar.gz`` here.

    ``also`` names distributions that the program imports only as it runs. ``say`` is told what happens.

    Raises:
        ApplicationLoadError: The program cannot be imported.
        OperationError: Spark does not unpack an archive of that name; its folder does not exist; a distribution is not
            installed, or does not tell its files.
    """
    say("importing the program")
    application = load_application(reference)
    output = Path(output or f"{application.id}.tar.gz").absolute()
    if not output.name.endswith(ENDINGS):
        raise OperationError(
            f"Spark unpacks no {output.name!r} that can be run; give it a name that ends with {' or '.join(ENDINGS)}, "
            f"as in `--output {output.name.partition('.')[0]}.tar.gz`"
        )
    if not output.parent.is_dir():
        raise OperationError(f"there is no folder {output.parent} for the archive; make it, or choose another --output")
    loaded = _loaded(reference)
    names, own = _sorted_out(loaded)
    needed = _closure([WEIR, *sorted(names), *also])
    files = {name: path for each in needed.values() for name, path in _files_of(each)}
    own = {module: paths for module, paths in own.items() if not any(path.name in files for path in paths)}
    for path in (path for paths in own.values() for path in paths):
        files |= _files_below(path)
    size_bytes = sum(path.stat().st_size for path in files.values())
    told = f"{len(files):,} files of {len(needed)} distributions and of {', '.join(sorted(own)) or 'no module'}"

    def on_file(done: int) -> None:
        say(f"{told}, {size_bytes / 1e6:,.0f} MB: {done * 100 // len(files)} % done")

    written = write_archive(output, files, on_file)
    return Package(path=output, size_bytes=written, own=tuple(sorted(own)), distributions=tuple(sorted(needed)))


def _loaded(reference: str) -> dict[str, list[Path]]:
    """The top-level modules that an executor loads, with their files or folders; without Python's own."""
    folders = [os.path.abspath(entry or os.getcwd()) for entry in sys.path]
    command = [sys.executable, "-c", _LOADED, json.dumps(folders), reference]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        last = next((line for line in reversed(answer.stderr.splitlines()) if line.strip()), "no reason given")
        raise OperationError(f"{reference} cannot be imported in a process of its own: {last}; correct the program")
    found: dict[str, list[str]] = json.loads(answer.stdout.splitlines()[-1])
    modules = {name: [Path(path) for path in paths] for name, paths in found.items()}
    return {name: paths for name, paths in modules.items() if paths[0].parent != _OF_PYTHON}


def _sorted_out(loaded: Mapping[str, Iterable[Path]]) -> tuple[set[str], dict[str, list[Path]]]:
    """The distributions that have been loaded, and the modules that are imported from elsewhere."""
    known = packages_distributions()
    names, own = set[str](), dict[str, list[Path]]()
    for module, paths in loaded.items():
        homes = {
            name: Path(str(given.locate_file("")))
            for name in known.get(module, ())
            if (given := _installed(name)) is not None
        }
        names |= homes.keys()
        if elsewhere := [path for path in paths if not any(path.is_relative_to(home) for home in homes.values())]:
            own[module] = elsewhere
    return names, own


def _closure(wanted: Sequence[str]) -> dict[str, Distribution]:
    """Distributions with all that they require and that is installed."""
    found: dict[str, Distribution] = {}
    pending = [(name, True) for name in wanted]
    while pending:
        name, is_asked_for = pending.pop()
        if (name := canonicalize_name(name)) in found:
            continue
        if (given := _installed(name)) is None:
            if is_asked_for:
                raise OperationError(f"{name!r} is not installed here; install it, or leave it out")
            continue
        found[name] = given
        pending += [(required, False) for required in _required(name, given)]
    return found


def _installed(name: str) -> Distribution | None:
    """A distribution as it was installed, rather than what a build has left in the folder of its sources."""
    known = list(distributions(name=name))
    return next((each for each in known if each.read_text("RECORD") is not None), next(iter(known), None))


def _required(name: str, given: Distribution) -> Iterator[str]:
    for each in map(Requirement, given.requires or ()):
        is_wanted = each.marker is None or any(
            each.marker.evaluate({"extra": extra}) for extra in _EXTRAS.get(name, ("",))
        )
        if is_wanted and not (name == WEIR and canonicalize_name(each.name) in _OF_DRIVERS):
            yield each.name


def _files_of(given: Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a distribution by their paths below the folder of all; of one that is installed as a link to its
    sources, those that describe it."""
    if given.files is None:
        raise OperationError(f"nothing says which files {given.name!r} consists of; install it with pip")
    is_link = '"editable": true' in (given.read_text("direct_url.json") or "")
    for file in given.files:
        name, path = file.as_posix(), Path(str(file.locate()))
        is_asked_for = ".dist-info/" in name if is_link else not name.startswith(("../", *_LEFT_OUT))
        if is_asked_for and "__pycache__" not in file.parts and path.is_file():
            yield name, path


def _files_below(path: Path) -> dict[str, Path]:
    """A module's file, or all files of a package; of links, what they lead to."""
    if path.is_file():
        return {path.name: path}
    found = {}
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = [each for each in folders if each != "__pycache__" and not each.startswith(".")]
        for name in names:
            if (file := Path(folder, name)).is_file():
                found[f"{path.name}/{file.relative_to(path).as_posix()}"] = file
    return found
