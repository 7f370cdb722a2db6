"""Entries in ``applications/`` are read as earlier versions wrote them, when Weir's modules had other names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weir import Application
from weir.infra.settings import Settings
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import load_reference, register, registered_application, registered_reference

ROOT = Path(__file__).resolve().parents[3]
OWN_PROGRAM = """
from weir import Application, Count, StreamsBuilder, String
builder = StreamsBuilder()
builder.stream("visits", key=String("page"), value=String("user")).group_by_key().agg("visits", n=Count())
app = Application("own", builder)
"""


def write_entry(folder: Path, application: str, reference: str, import_from: Path) -> Settings:
    """As Weir 0.1 wrote it."""
    entry = folder / "applications" / f"{application}.json"
    entry.parent.mkdir(parents=True)
    entry.write_text(
        f'{{\n  "application": "{application}",\n  "reference": "{reference}",\n  "import_from": "{import_from}"\n}}\n'
    )
    return Settings(dir=folder)


@pytest.mark.parametrize(("file", "name"), [("shop.py", "its_shop"), ("__init__.py", "its_jobs")])
def test_a_program_is_found_again_from_any_folder(tmp_path, monkeypatch, file, name):
    """By the folder from which it was imported, which need not be the current one."""
    folder = tmp_path / "jobs" / name
    folder.mkdir(parents=True)
    (folder / file).write_text(OWN_PROGRAM)
    module = name if file == "__init__.py" else f"{name}.shop"
    monkeypatch.syspath_prepend(tmp_path / "jobs")
    load_reference(f"{module}:app")
    settings = Settings(dir=tmp_path / ".weir")
    register(settings, "own", f"{module}:app")
    entry = json.loads((settings.dir / "applications" / "own.json").read_text())
    assert entry["import_from"] == str(tmp_path / "jobs")
    monkeypatch.undo()
    for each in {module, name}:
        monkeypatch.delitem(sys.modules, each, raising=False)
    assert registered_application(settings, "own").id == "own"


def test_of_an_installed_program_the_current_folder_is_kept_and_not_the_environment(tmp_path, monkeypatch):
    environment = tmp_path / "lib" / "site-packages"
    environment.mkdir(parents=True)
    (environment / "installed_shop.py").write_text(OWN_PROGRAM)
    monkeypatch.syspath_prepend(environment)
    monkeypatch.chdir(tmp_path)
    load_reference("installed_shop:app")
    settings = Settings(dir=tmp_path / ".weir")
    register(settings, "own", "installed_shop:app")
    monkeypatch.delitem(sys.modules, "installed_shop", raising=False)
    entry = json.loads((settings.dir / "applications" / "own.json").read_text())
    assert entry["import_from"] == str(tmp_path)


def test_an_example_is_found_under_its_new_name(tmp_path):
    settings = write_entry(tmp_path / ".weir", "flights", "pipelines.examples.flights:app", tmp_path)
    assert registered_reference(settings, "flights") == "weir.pipelines.examples.flights:app"
    application = registered_application(settings, "flights")
    assert (type(application), application.id) == (Application, "flights")


def test_an_example_that_was_started_in_a_clone_is_found_under_its_new_name_there_too(tmp_path):
    """The clone has a module of the old name too, but loading that one would load the program twice."""
    settings = write_entry(tmp_path / ".weir", "flights", "pipelines.examples.flights:app", ROOT)
    assert registered_reference(settings, "flights") == "weir.pipelines.examples.flights:app"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "reference"),
    [
        ("pipelines/examples/flights.py", "pipelines.examples.flights:app"),
        ("pipelines/examples/flights/__init__.py", "pipelines.examples.flights:app"),
        ("pipelines/visits.py", "pipelines.visits:app"),
    ],
)
def test_a_projects_own_module_with_such_a_name_keeps_its_reference(tmp_path, file, reference):
    project = tmp_path / "project"
    (project / file).parent.mkdir(parents=True)
    (project / file).write_text(OWN_PROGRAM)
    write_entry(tmp_path / ".weir", "own", reference, project)
    found = registered_elsewhere(tmp_path / ".weir", "own")
    assert found == {"reference": reference, "application": "own", "module": str(project / file)}


def test_the_error_for_the_old_name_of_an_example_gives_the_new_one(tmp_path):
    done = run_outside_the_clone(
        tmp_path, "from weir import load_application; load_application('pipelines.examples.flights:app')"
    )
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert "ApplicationLoadError" in error
    assert "no module 'pipelines'" in error
    assert error.endswith(" weir.pipelines.examples.flights:app")


def run_outside_the_clone(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` where, as with an installed Weir, its modules are found only inside ``weir``."""
    installed = folder / "site-packages"
    installed.mkdir()
    (installed / "weir").symlink_to(ROOT / "weir")
    path = f"[{str(installed)!r}, *(each for each in sys.path if each not in ('', {str(ROOT)!r}))]"
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path = {path}; {code}"], cwd=folder, capture_output=True, text=True
    )


def registered_elsewhere(folder: Path, application: str) -> dict[str, str]:
    """What an installed Weir reads from the registry of ``folder``."""
    code = (
        "import json; from pathlib import Path; "
        "from weir.infra.settings import Settings; "
        "from weir.pipelines.operations.registry import registered_application, registered_reference; "
        f"settings = Settings(dir=Path({str(folder)!r})); "
        f"reference = registered_reference(settings, {application!r}); "
        f"application = registered_application(settings, {application!r}); "
        "print(json.dumps({'reference': reference, 'application': application.id, "
        "'module': sys.modules[reference.partition(':')[0]].__file__}))"
    )
    done = run_outside_the_clone(folder.parent, code)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_a_module_that_was_never_renamed_keeps_its_reference(tmp_path):
    settings = write_entry(tmp_path / ".weir", "faulty", "tests.faults.applications:app", ROOT)
    assert registered_reference(settings, "faulty") == "tests.faults.applications:app"


@pytest.mark.parametrize("place", ["applications/own.json", "applications", "."])
def test_a_program_that_others_could_have_named_is_not_imported_until_only_the_user_can(tmp_path, place):
    """The entry's folder joins the import path, so whoever writes the entry decides which code runs."""
    settings = write_entry(tmp_path / ".weir", "own", "planted:app", tmp_path / "planted")
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "planted.py").write_text(OWN_PROGRAM)
    (settings.dir / place).chmod((settings.dir / place).stat().st_mode | 0o020)
    with pytest.raises(OperationError, match="others can write") as refused:
        registered_application(settings, "own")
    assert "planted" not in sys.modules
    assert str(tmp_path / "planted") not in sys.path
    (command,) = re.findall("`(chmod .*?)`", str(refused.value))
    subprocess.run(command, shell=True, check=True)
    assert registered_reference(settings, "own") == "planted:app"
    del sys.modules["planted"]
    sys.path.remove(str(tmp_path / "planted"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_an_entry_of_another_user_is_taken_over_or_replaced_by_a_run_of_ones_own(tmp_path, monkeypatch):
    settings = write_entry(tmp_path / ".weir", "faulty", "tests.faults.applications:app", ROOT)
    entry = settings.dir / "applications" / "faulty.json"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    os.chown(entry, 4712, -1)
    with pytest.raises(OperationError, match=r"belongs to another user; .* `weir run MODULE:APP`") as refused:
        registered_reference(settings, "faulty")
    (command,) = re.findall("`(chown .*?)`", str(refused.value))
    subprocess.run(command, shell=True, check=True)
    assert registered_reference(settings, "faulty") == "tests.faults.applications:app"
    os.chown(entry, 4712, -1)
    monkeypatch.undo()
    register(settings, "faulty", "tests.faults.applications:app")
    assert registered_reference(settings, "faulty") == "tests.faults.applications:app"


def test_a_group_that_may_write_what_a_run_writes_may_name_its_program_too(tmp_path):
    settings = write_entry(tmp_path / ".weir", "faulty", "tests.faults.applications:app", ROOT)
    (settings.dir / "applications" / "faulty.json").chmod(0o660)
    with pytest.raises(OperationError, match="others can write"):
        registered_reference(settings, "faulty")
    shared = settings.model_copy(update={"umask": "007"})
    assert registered_reference(shared, "faulty") == "tests.faults.applications:app"
