"""How ``tests`` is laid out: what several test modules use is in modules whose names do not begin with ``test_``."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent


def offences(root: Path) -> list[str]:
    """Each line that imports a test module or something from one, anywhere in its file."""
    found = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
            else:
                continue
            found += [
                f"{path.relative_to(root).as_posix()}:{node.lineno} imports {name}: "
                "move what both need to a module whose name does not begin with test_"
                for name in names
                if name.startswith(("tests.", "test_")) and any(part.startswith("test_") for part in name.split("."))
            ]
    return found


def test_no_test_module_imports_from_another():
    assert offences(TESTS) == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from tests.state.test_a import b", "tests.state.test_a.b"),
        ("from tests.state import test_a", "tests.state.test_a"),
        ("import tests.state.test_a as a", "tests.state.test_a"),
        ("from .test_a import b", "test_a.b"),
        ("def f():\n    from tests.state.test_a import b", "tests.state.test_a.b"),
    ],
)
def test_an_import_from_a_test_module_is_named_with_its_line(tmp_path, code, name):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "helpers.py").write_text(code)
    (offence,) = offences(tmp_path)
    assert offence.startswith(f"state/helpers.py:{len(code.splitlines())} imports {name}: ")


def test_helper_modules_may_be_imported(tmp_path):
    (tmp_path / "test_b.py").write_text("import pytest\nfrom weir.testing import x\nfrom tests.state.programs import y")
    assert offences(tmp_path) == []
