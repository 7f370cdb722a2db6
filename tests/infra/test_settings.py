"""Settings: where a value comes from, what is refused, what is never printed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weir.infra.settings import Settings, SettingsError, is_secret, mask_url


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty current folder and no ``WEIR_*`` variable."""
    for variable in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_need_nothing(place):
    settings = Settings.load()
    assert settings.dir == place / ".weir"
    assert settings.bootstrap_servers is None
    assert settings.slots >= 2
    assert settings.control_database_url == f"sqlite:///{place}/.weir/control.sqlite"
    assert settings.warehouse == place / ".weir" / "warehouse"
    assert not (place / ".weir").exists()


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(place, monkeypatch):
    (place / "weir.toml").write_text('slots = 3\nmax_epoch_records = 5\nbootstrap_servers = "file:1"\n')
    monkeypatch.setenv("WEIR_SLOTS", "4")
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", "variable:1")
    settings = Settings.load(overrides={"bootstrap-servers": "flag:1"})
    assert (settings.max_epoch_records, settings.slots, settings.bootstrap_servers) == (5, 4, "flag:1")


def test_client_properties_merge_from_all_sources_under_librdkafkas_names(place, monkeypatch):
    (place / "weir.toml").write_text(
        '[kafka]\n"sasl.username" = "ann"\nsecurity.protocol = "SASL_PLAINTEXT"\n'
        "enable.ssl.certificate.verification = false\n"
        '[spark]\ndriver.memory = "1g"\n"spark.ui.port" = 4041\n'
    )
    monkeypatch.setenv("WEIR_KAFKA_SASL_PASSWORD", "hunter2")
    monkeypatch.setenv("WEIR_SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO", "ann:hunter2")
    settings = Settings.load(
        overrides={
            "schema_registry.url": "http://registry:8081",
            "kafka.security.protocol": "SASL_SSL",
            "spark.driver.memory": "2g",
        }
    )
    assert settings.kafka == {
        "sasl.username": "ann",
        "security.protocol": "SASL_SSL",
        "sasl.password": "hunter2",
        "enable.ssl.certificate.verification": "false",
    }
    assert settings.spark == {"spark.driver.memory": "2g", "spark.ui.port": "4041"}
    assert settings.schema_registry == {"url": "http://registry:8081", "basic.auth.user.info": "ann:hunter2"}
    assert "hunter2" not in repr(settings)


def test_the_dir_flag_wins_and_is_made_absolute(place, monkeypatch):
    monkeypatch.setenv("WEIR_DIR", "elsewhere")
    assert Settings.load().dir == place / "elsewhere"
    assert Settings.load("here").dir == place / "here"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"slot": "2"}, "^unknown setting 'slot' in a flag; did you mean 'slots'?"),
        ({"kafka": "x"}, "^unknown setting 'kafka' in a flag; known settings are dir, .*kafka.<property>"),
        ({"slots": "many"}, "^setting 'slots' in a flag cannot be 'many': it should be a valid integer$"),
        (
            {"bootstrap_servers": ""},
            "cannot be '': name the brokers as host:port or leave it out for the embedded one$",
        ),
        (
            {"bootstrap_servers": "foo"},
            "cannot be 'foo': 'foo' needs a port; write host:port$",
        ),
        ({"bootstrap_servers": "a:9092, b:x"}, "cannot be 'a:9092, b:x': 'b:x' needs a port; write host:port$"),
        (
            {"metrics_level": "loud"},
            "^setting 'metrics_level' in a flag cannot be 'loud': it should be 'info' or 'debug'$",
        ),
        ({"slots": "0"}, "^setting 'slots' in a flag cannot be '0': it should be greater than or equal to 1$"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_clear_sentence(overrides, message):
    with pytest.raises(SettingsError, match=message):
        Settings.load(overrides=overrides)


@pytest.mark.parametrize("servers", ["kafka-1:9092,kafka-2:9092", "SASL_SSL://kafka:9093, [::1]:9092,"])
def test_brokers_are_hosts_with_ports(servers):
    assert Settings.load(overrides={"bootstrap_servers": servers}).bootstrap_servers == servers


def test_an_unknown_variable_or_file_key_is_named_with_the_closest_known_one(place, monkeypatch):
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVER", "x:1")
    with pytest.raises(SettingsError, match="unknown setting 'WEIR_BOOTSTRAP_SERVER' in the environment; did you "):
        Settings.load()
    monkeypatch.delenv("WEIR_BOOTSTRAP_SERVER")
    monkeypatch.setenv("WEIR_SLOTS", "many")
    with pytest.raises(SettingsError, match="setting 'WEIR_SLOTS' in the environment cannot be 'many': it should"):
        Settings.load()
    monkeypatch.delenv("WEIR_SLOTS")
    (place / "weir.toml").write_text("max_epoch_record = 5\n")
    with pytest.raises(SettingsError, match=r"^unknown setting 'max_epoch_record' in weir\.toml; did you mean"):
        Settings.load()
    (place / "weir.toml").write_text("slots = \n")
    with pytest.raises(SettingsError, match=r"weir\.toml: not a TOML file"):
        Settings.load()


def test_the_brokers_among_client_properties_are_refused_with_the_setting_that_names_them(place, monkeypatch):
    def refused(origin, overrides=None):
        with pytest.raises(SettingsError) as error:
            Settings.load(overrides=overrides)
        assert str(error.value) == (
            f"{origin} does not name the brokers; write "
            + ("WEIR_BOOTSTRAP_SERVERS" if "WEIR" in origin else "bootstrap_servers")
        )

    refused("'kafka.bootstrap.servers' in a flag", {"kafka.bootstrap.servers": "a:1"})
    refused("'kafka.metadata.broker.list' in a flag", {"kafka.metadata.broker.list": "a:1"})
    monkeypatch.setenv("WEIR_KAFKA_BOOTSTRAP_SERVERS", "a:1")
    refused("'WEIR_KAFKA_BOOTSTRAP_SERVERS' in the environment")
    monkeypatch.delenv("WEIR_KAFKA_BOOTSTRAP_SERVERS")
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", "a:1")
    assert Settings.load().bootstrap_servers == "a:1"
    (place / "weir.toml").write_text('[kafka]\n"bootstrap.servers" = "a:1"\n')
    refused("'kafka.bootstrap.servers' in weir.toml")
    (place / "weir.toml").write_text('bootstrap_servers = "b:1"\n[kafka]\nsecurity.protocol = "SSL"\n')
    monkeypatch.delenv("WEIR_BOOTSTRAP_SERVERS")
    assert Settings.load().bootstrap_servers == "b:1"
    assert Settings.load(overrides={"bootstrap_servers": "c:1"}).bootstrap_servers == "c:1"


def test_secrets_are_not_printed():
    settings = Settings.load(
        overrides={
            "kafka.sasl.password": "hunter2",
            "kafka.sasl.username": "ann",
            "control_url": "postgresql://ann:hunter2@host/db",
        }
    )
    assert "hunter2" not in repr(settings) + str(settings)
    assert "hunter2" not in repr(Settings.load(overrides={"schema_registry.url": "http://ann:hunter2@host"}))
    assert "'sasl.username': 'ann'" in repr(settings)
    assert "postgresql://ann:***@host/db" in repr(settings)
    assert is_secret("ssl.key.pem")
    assert not is_secret("security.protocol")
    assert mask_url("sqlite:////tmp/x.sqlite") == "sqlite:////tmp/x.sqlite"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:hunter2@host/db", "postgresql://ann:***@host/db"),
        ("postgresql://ann:hun@ter2@host/db", "postgresql://ann:***@host/db"),
        ("postgresql://host/db?user=ann&password=hunter2", "postgresql://host/db?user=ann&password=***"),
        ("postgresql://a:hunter2@h/db?sslpassword=hunter2&a=b", "postgresql://a:***@h/db?sslpassword=***&a=b"),
        ("ann:hunter2@host", "ann:***@host"),
        ("postgresql://ann@host:5432/db?host=/tmp/a", "postgresql://ann@host:5432/db?host=/tmp/a"),
        ("one:9092,two:9092", "one:9092,two:9092"),
    ],
)
def test_a_password_is_masked_wherever_it_is_in_a_url(url, shown):
    assert mask_url(url) == shown


def test_a_setting_that_may_have_a_password_is_not_repeated_when_it_is_invalid(place):
    (place / "weir.toml").write_text("sql_url = ['postgresql://ann:hunter2@host/db']\n")
    with pytest.raises(SettingsError, match=r"'sql_url' in weir\.toml cannot be what it is: it should") as refused:
        Settings.load()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("umask", ["22", "0o77", "700", "0078", "none"])
def test_a_umask_that_would_close_files_to_their_user_or_is_none_is_refused(monkeypatch, umask):
    monkeypatch.setenv("WEIR_UMASK", umask)
    with pytest.raises(SettingsError, match=r"'WEIR_UMASK' in the environment cannot be .*: write 0 and two octal"):
        Settings.load()
    monkeypatch.setenv("WEIR_UMASK", "0027")
    assert Settings.load().umask == "0027"


def test_a_level_of_metrics_may_be_in_capitals(monkeypatch):
    monkeypatch.setenv("WEIR_METRICS_LEVEL", "DEBUG")
    assert Settings.load().metrics_level == "debug"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("s3://bucket/path", "s3://bucket/path"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket/path", "gs://bucket/path"),
        ("az://container/path", "az://container/path"),
        ("/mnt/warehouse", Path("/mnt/warehouse")),
    ],
)
def test_the_warehouse_is_a_path_or_the_uri_of_a_folder_of_an_object_store(value, found):
    assert Settings.load(overrides={"warehouse": value}).warehouse == found


@pytest.mark.parametrize("value", ["", "hdfs://host/shop.tar.gz", "shop.tar.gz"])
def test_an_archive_is_a_path_or_a_uri_that_executors_reach(place, value):
    found = Settings.load(overrides={"archive": value}).archive
    assert found == (str(place / value) if value == "shop.tar.gz" else value)


def test_the_warehouse_is_in_the_folder_unless_it_is_set(tmp_path):
    assert Settings.load(tmp_path).warehouse == tmp_path / "warehouse"
    assert Settings.load(tmp_path, {"warehouse": "there"}).warehouse == Path.cwd() / "there"


@pytest.mark.parametrize("value", ["s3://bucket", "s3://bucket/", "ftp://host/path", "s3://key:secret@bucket/path"])
def test_a_uri_that_names_no_folder_of_an_object_store_is_refused(value):
    with pytest.raises(
        SettingsError, match=r"'warehouse' in a flag cannot be .*write a path or s3://bucket/path"
    ) as found:
        Settings.load(overrides={"warehouse": value})
    assert "secret" not in str(found.value)
