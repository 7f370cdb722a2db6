"""``docs/settings.md`` has every setting, with the values that it takes and its default."""

import re
import tomllib
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest
from annotated_types import Ge, Le

from weir.infra.settings import Settings

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "settings.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
UNITS = {"bytes": "bytes", "days": "days", "hours": "hours", "_s": "seconds"}


def taken(name: str) -> str:
    """What a setting takes, by its type, its bounds and the unit in its name."""
    field = Settings.model_fields[name]
    kinds = [kind for kind in get_args(field.annotation) or [field.annotation] if kind is not NoneType]
    if field.annotation == dict[str, str]:
        return "properties"
    if kinds == [Path]:
        return "a path"
    if kinds == [Path, str]:
        return "a path or a URI"
    if kinds == [str]:
        return "octal digits" if name == "umask" else "text"
    if all(isinstance(kind, str) for kind in kinds):
        return " or ".join(f"`{kind}`" for kind in kinds)
    bounds = {type(each): each for each in field.metadata}
    low = bounds[Ge].ge
    unit = "".join(f"{unit}, " for ending, unit in UNITS.items() if name.endswith(ending))
    return f"{low} to {bounds[Le].le:,}" if Le in bounds else f"{unit}at least {low:,}"


def default(name: str) -> str:
    if name == "warehouse":
        return "in `dir`"
    value: Any = Settings.model_fields[name].get_default(call_default_factory=True)
    if name == "slots":
        return "the number of cores, at least 2"
    if value == "":
        return "empty"
    if value is None or value == {}:
        return "none"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else f"`{value}`"


def test_the_page_has_every_setting_and_no_other():
    assert sorted(name for name, _, _ in ROWS) == sorted(Settings.model_fields)


@pytest.mark.parametrize(("name", "value", "said"), ROWS)
def test_the_page_says_what_a_setting_takes_and_its_default(name, value, said):
    assert (value.strip(), said.strip()) == (taken(name), default(name))


def test_the_example_is_taken(tmp_path, monkeypatch):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "weir.toml").write_text(example)
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"WEIR_{name.upper()}", raising=False)
    found, written = Settings.load(), tomllib.loads(example)
    assert (found.slots, found.quarantine_max_days) == (written["slots"], written["quarantine_max_days"])
    assert found.kafka == {"security.protocol": "SASL_SSL"}
    assert found.spark == {"spark.driver.memory": "2g"}


def test_each_way_to_set_properties_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = re.findall(r"^\| \w+ \| `--set ([\w.]+)=\S+` \| (\S+) \| table `\[(\w+)\]` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for flag, variable, table in rows:
        assert getattr(Settings.load(overrides={flag: "x"}), table)
        if variable != "none":
            with monkeypatch.context() as environment:
                environment.setenv(variable.strip("`"), "x")
                assert getattr(Settings.load(), table) == getattr(Settings.load(overrides={flag: "x"}), table)
