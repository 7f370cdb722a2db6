"""Secrets in arguments are refused, since every user of the machine can read those; each place that the message names
takes them."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from weir.pipelines.cli.app import app
from weir.pipelines.cli.options import load_settings
from weir.pipelines.operations.errors import OperationError

HIDDEN = "not-to-be-seen"
URL = f"postgresql://ann:{HIDDEN}@host/shop"
REFUSED = [
    ("kafka.sasl.password", HIDDEN),
    ("schema_registry.basic.auth.user.info", f"ann:{HIDDEN}"),
    ("sql_url", URL),
    ("control_url", URL),
]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(key: str, value: str) -> str:
    with pytest.raises(OperationError, match="shows its value to every user of this machine") as refused:
        load_settings(None, {key: value})
    assert HIDDEN not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(("key", "value"), [*REFUSED, ("spark.hadoop.fs.s3a.secret.key", HIDDEN)])
def test_a_secret_is_taken_from_the_file_where_the_message_says(place, key, value):
    name, table = re.search(r"weir\.toml as (\S+?)(?: under \[(\w+)\])?(?:,|$)", told(key, value)).groups()
    (place / "weir.toml").write_text(f"[{table}]\n{name} = '{value}'\n" if table else f"{name} = '{value}'\n")
    assert HIDDEN in load_settings(None).model_dump_json()


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_a_secret_is_taken_from_the_variable_that_the_message_names(monkeypatch, key, value):
    monkeypatch.setenv(told(key, value).rpartition("or set ")[2], value)
    assert HIDDEN in load_settings(None).model_dump_json()


def test_a_command_ends_with_the_sentence_and_what_is_no_secret_is_taken():
    result = CliRunner().invoke(app, ["kafka", "list", "--set", f"kafka.sasl.password={HIDDEN}"])
    assert (result.exit_code, HIDDEN in result.output) == (1, False)
    assert "--set kafka.sasl.password=... shows its value" in " ".join(result.output.split())
    taken = load_settings(None, {"kafka.sasl.username": "ann", "sql_url": "postgresql://ann@host/shop", "slots": "3"})
    assert (taken.kafka, taken.sql_url, taken.slots) == ({"sasl.username": "ann"}, "postgresql://ann@host/shop", 3)
