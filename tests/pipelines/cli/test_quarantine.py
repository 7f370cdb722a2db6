"""``weir status``: what it shows of an application's quarantine."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest
from typer.testing import CliRunner

from tests.state.quarantine_folders import DAY_S, MIB, put, quarantined_while_open
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations.registry import register
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord


@pytest.fixture
def place(tmp_path) -> Settings:
    """A folder where ``sales`` and ``shop`` have committed."""
    settings = Settings(dir=tmp_path)
    for name in ("sales", "shop"):
        register(settings, name, "my_jobs.shop:app")
        driver = Committer(settings.warehouse, name, [], fingerprint="f")
        driver.claim()
        driver.commit(CommitRecord(kind="commit", generation=1, epoch=1, at_ms=0, fingerprint="f"))
        driver.close()
    return settings


def weir(place: Settings, *arguments: str):
    result = CliRunner().invoke(app, [*arguments, "--dir", str(place.dir)])
    assert result.exit_code == 0, result.stderr
    return result


def shown(place: Settings) -> dict[str, dict]:
    found = json.loads(weir(place, "status", "--json").stdout)["applications"]
    return {entry["application"]: entry["quarantine"] for entry in found}


def lines(place: Settings) -> list[str]:
    return [line.strip() for line in weir(place, "status").stdout.splitlines() if "quarantine" in line]


def test_each_application_has_its_own_folders_size_age_and_path(place):
    sales = place.state_dir / "sales"
    put(sales, "a", age_s=2 * DAY_S, mib=4)
    put(sales, "b", age_s=1 * DAY_S, mib=2)
    found = shown(place)
    assert found["shop"] == {
        "folders": 0,
        "size_bytes": 0,
        "oldest_at": None,
        "oldest_age": None,
        "path": "",
        "over_limit": "",
    }
    quarantine = found["sales"]
    assert (quarantine["folders"], quarantine["over_limit"]) == (2, "")
    assert 6 * MIB <= quarantine["size_bytes"] < 6.1 * MIB
    assert quarantine["oldest_age"] == pytest.approx(2 * DAY_S, abs=60)
    assert datetime.fromisoformat(quarantine["oldest_at"]).timestamp() == pytest.approx(time.time() - 2 * DAY_S, abs=60)
    assert quarantine["path"] == str(sales / "0_0" / "quarantine")
    assert lines(place) == [
        f"quarantine: 2 folders, {quarantine['size_bytes'] / 1e6:.1f} MB, the oldest 2.0 days old, "
        f"in {sales}/0_0/quarantine"
    ]
    put(sales, "c", age_s=0, task="0_1")
    assert lines(place)[0].endswith(f" in {sales}/*/quarantine")


@pytest.mark.parametrize(
    ("age_days", "max_bytes", "sentence"),
    [
        (8, None, "the quarantine has a folder 8.0 days old, more than 7 days: `weir compact sales` deletes 1 folder"),
        (1, 10**6, "the quarantine takes 4.2 MB, more than 1.0 MB: `weir compact sales` deletes 1 folder"),
        (8, 10**6, "takes 4.2 MB, more than 1.0 MB and has a folder 8.0 days old, more than 7 days: `weir compact"),
        (6, 10**7, ""),
    ],
)
def test_beyond_its_limit_the_way_out_is_named_and_works(place, monkeypatch, age_days, max_bytes, sentence):
    put(place.state_dir / "sales", "a", age_s=age_days * DAY_S, mib=4)
    if max_bytes is not None:
        monkeypatch.setenv("WEIR_QUARANTINE_MAX_BYTES", str(max_bytes))
    assert sentence in shown(place)["sales"]["over_limit"]
    assert bool(shown(place)["sales"]["over_limit"]) == bool(sentence)
    assert len(lines(place)) == (2 if sentence else 1)
    assert sentence in lines(place)[-1]
    weir(place, "compact", "sales")
    assert shown(place)["sales"]["over_limit"] == ""
    assert len(lines(place)) == (0 if sentence else 1)


def test_beyond_its_limit_with_nothing_to_delete_yet_the_reason_is_named(place, monkeypatch):
    monkeypatch.setenv("WEIR_QUARANTINE_MAX_BYTES", "1000000")
    put(place.state_dir / "shop", "a", age_s=60, mib=4)
    with quarantined_while_open(place.state_dir / "sales", "used") as used:
        assert shown(place)["sales"]["over_limit"].endswith(
            f" old, more than 7 days: {used} has to stay, a process has it open"
        )
    assert shown(place)["shop"]["over_limit"] == (
        "the quarantine takes 4.2 MB, more than 1.0 MB: "
        "what is left is the newest of each task, which stays for an hour"
    )
    weir(place, "compact", "shop")
    assert shown(place)["shop"]["folders"] == 1
