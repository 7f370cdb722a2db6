"""Settings of a place where Weir runs: folder, brokers, slots, limits; what belongs to a program is in ``Application``.

Only this module and ``weir.infra.environment`` read the environment. A value comes from the first of: a flag
(``--dir``, ``--set key=value``), a ``WEIR_*`` variable, ``weir.toml`` in the current folder, the default. Kafka client
properties keep librdkafka's names: ``--set kafka.security.protocol=SASL_SSL``,
``WEIR_KAFKA_SECURITY_PROTOCOL=SASL_SSL``, or a ``[kafka]`` table. Spark properties keep Spark's: ``--set
spark.driver.memory=2g`` or a ``[spark]`` table. The schema registry's client takes ``--set schema_registry.url=...``,
``WEIR_SCHEMA_REGISTRY_URL`` or a ``[schema_registry]`` table.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from weir.infra.environment import DIR, RACK_VARIABLE, STATE

CONFIG_FILE = "weir.toml"
PREFIX = "WEIR_"
_ENVIRONMENT = "the environment"
_TABLES = ("kafka", "spark", "schema_registry")
_BROKERS = ("bootstrap.servers", "metadata.broker.list")
"""librdkafka's names for ``bootstrap_servers``, which alone decides whether the embedded broker is used."""
_PARAMETER = re.compile("([?&]([^?&=]+)=)([^&]*)")
_PUBLIC_WORDS = frozenset({"security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username"})
_SECRET_PARTS = (
    "password",
    "secret",
    "token",
    "sasl.",
    "ssl.key",
    "oauthbearer",
    "jaas",
    "credential",
    "access.key",
    "account.key",
    "auth.user.info",
    "alert_urls",
)


class SettingsError(Exception):
    """A setting is unknown or has an invalid value; the text names where it was set and the way out."""


class Settings(BaseModel):
    """The settings of one place; frozen. Build it with ``Settings.load``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    dir: Path = Path(DIR)
    """Contains everything that a run leaves behind; made absolute."""
    warehouse: Path | str = Field(default_factory=lambda others: others["dir"] / "warehouse")
    """Where everything is that is committed: a path, made absolute, or the URI of a folder of an object store, as a
    text: ``s3://bucket/path``. Local state is always in ``dir``."""
    umask: str = "077"
    """What others may not do with what Weir writes, as octal digits; by default nothing is for them."""
    bootstrap_servers: str | None = None
    """``host:port,...`` of your own Kafka; None starts the folder's embedded broker."""
    kafka: dict[str, str] = Field(default_factory=dict, repr=False)
    """librdkafka properties for every client, for example for SASL and TLS."""
    slots: int = Field(default_factory=lambda: max(2, len(os.sched_getaffinity(0))), ge=1, le=1024)
    """How many tasks run at the same time; by default the number of cores, but at least 2."""
    master: str = ""
    """The cluster manager of a Spark cluster, such as ``spark://host:7077``, ``yarn`` or ``k8s://https://host:6443``;
    without one, slots are threads of this host."""
    archive: str = ""
    """What ``weir package`` has written, for the cluster's executors: a path, made absolute, or a URI that they reach;
    without one, Weir and the program are installed on their hosts."""
    executors: int = Field(default=2, ge=1)
    """How many executors a run asks its cluster for; the slots are divided among them."""
    standby_replicas: int = Field(default=0, ge=0)
    """On how many other executors of the cluster each task has a standby, which follows its stores."""
    state_cleanup_delay_s: float = Field(default=600.0, ge=0)
    """How long an executor of the cluster keeps local state that no assignment needs."""
    assignor: str = "high_availability"
    """What decides which executor runs a task: ``high_availability``, ``rack_aware``, ``sticky``, or
    ``package.module:Class`` of an own one (``weir.pipelines.assignment.TaskAssignor``)."""
    acceptable_recovery_lag: int = Field(default=10_000, ge=0)
    """By how many rows an executor's stores of a task may be behind its changelogs for the task to move there."""
    max_warmup_replicas: int = Field(default=2, ge=1)
    """How many stores at a time are brought to executors to which tasks are going to move."""
    probing_interval_s: float = Field(default=10.0, ge=0)
    """How often it is looked, while there are such, whether they have caught up."""
    driver_host: str = ""
    """The address at which executors reach the driver; by default only those of this host do, unless Spark has started
    the driver (cluster mode): then at the first address of its host."""
    query_host: str = ""
    """The address at which each executor of a cluster answers queries, such as ``0.0.0.0``; by default the one by which
    Spark knows it."""
    query_port: int = Field(default=0, ge=0, le=65_520)
    """The port where it does, or one of the 15 after that if it is taken; 0 means one that the system picks."""
    max_epoch_records: int = Field(default=1_000_000, ge=1)
    """The most records that an epoch reads, over all tasks; of each topic, where a task reads several."""
    max_epoch_bytes: int = Field(default=256 << 20, ge=1 << 10)
    """The most bytes of keys and values that an epoch reads, over all tasks; of each topic, where a task reads
    several."""
    tombstone_retention_hours: float = Field(default=24.0, ge=0)
    """How long compaction keeps the rows of deleted keys; a standby that falls further behind starts over."""
    spark_compaction_keys: int = Field(default=10_000_000, ge=1)
    """Compaction merges a changelog's part of a task, or an output, with more keys than this by a Spark job."""
    snapshot_rows: int = Field(default=1_000_000, ge=0)
    """A task publishes a snapshot of its state once its changelogs have grown by this many rows; 0 means never."""
    quarantine_max_days: float = Field(default=7.0, ge=0)
    """How long local state that could not be trusted is kept in quarantine; compaction deletes what is older."""
    quarantine_max_bytes: int = Field(default=10_000_000_000, ge=0)
    """The most that an application's quarantine takes on disk after a compaction; the oldest goes first."""
    outbox_max_bytes: int = Field(default=4_000_000_000, ge=1)
    """How much may wait on disk for an application's sinks; beyond that a run reads no more until they catch up."""
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """The port where a run serves its metrics to Prometheus; None means nowhere."""
    metrics_host: str = "127.0.0.1"
    """The address to serve metrics at; by default the loopback only."""
    metrics_level: Literal["info", "debug"] = "info"
    """How much is measured: at ``debug`` also what each node and store does, and late records are logged."""
    mirror_offsets_to_group: str | None = Field(default=None, min_length=1)
    """A consumer group that gets the positions with every commit, for lag tools; None means no group."""
    control_url: str = Field(default="", repr=False)
    """SQLAlchemy URL of the control database; if empty, SQLite in the folder."""
    sql_url: str = Field(default="", repr=False)
    """SQLAlchemy URL of the database for sinks of ``to_sql`` that name none."""
    alert_urls: str = Field(default="", repr=False)
    """Who is told of failed checks and runs under Dagster: Apprise's URLs, separated by white space."""
    alert_level: Literal["error", "warning"] = "error"
    """Whether warnings are told, too."""
    schema_registry: dict[str, str] = Field(default_factory=dict, repr=False)
    """Properties of confluent-kafka's registry client, for example ``url``; for programs that read Avro or Protobuf."""
    spark: dict[str, str] = Field(default_factory=dict, repr=False)
    """Spark properties by full name; they override Weir's own."""

    @field_validator("dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return Path(os.path.abspath(value.expanduser()))

    @field_validator("warehouse")
    @classmethod
    def _path_or_uri(cls, value: Path | str) -> Path | str:
        if "://" not in str(value):
            return Path(os.path.abspath(Path(value).expanduser()))
        if not re.fullmatch(r"(s3|gs|az)://[^/?#@:\s]+/[^?#]*[^?#/]/?", str(value)):
            raise ValueError("write a path or s3://bucket/path or gs://bucket/path or az://container/path")
        return str(value).rstrip("/")

    @field_validator("archive")
    @classmethod
    def _absolute_unless_uri(cls, value: str) -> str:
        return value if not value or "://" in value else os.path.abspath(Path(value).expanduser())

    @field_validator("umask")
    @classmethod
    def _octal(cls, value: str) -> str:
        if not re.fullmatch("0?0[0-7]{2}", value):
            raise ValueError("write 0 and two octal digits: 077 for the user alone or 027 to let the group read")
        return value

    @field_validator("assignor")
    @classmethod
    def _assignor(cls, value: str) -> str:
        if not re.fullmatch(r"high_availability|rack_aware|sticky|[\w.]+:\w+", value):
            raise ValueError("write high_availability or rack_aware or sticky or package.module:name of a class")
        return value

    @field_validator("metrics_level", mode="before")
    @classmethod
    def _in_small_letters(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("bootstrap_servers")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("name the brokers as host:port or leave it out for the embedded one")
        for server in (value or "").split(","):
            if server.strip() and not re.fullmatch(r"\S+:\d+", server.strip()):
                raise ValueError(f"{server.strip()!r} needs a port; write host:port")
        return value

    @classmethod
    def load(cls, dir: str | os.PathLike[str] | None = None, overrides: Mapping[str, str] | None = None) -> Settings:
        """Merge flags, variables, ``weir.toml`` and defaults.

        ``overrides`` holds the flags as ``--set`` takes them: ``slots``, ``kafka.sasl.username``,
        ``spark.driver.memory``. ``dir`` is the ``--dir`` flag.

        Raises:
            SettingsError: A key is unknown (the closest known one is named), a value has the wrong type, or brokers are
                named as a client property.
        """
        merged: dict[str, Any] = {}
        origins: dict[str, str] = {}
        flags = dict(overrides or {})
        if dir is not None:
            flags["dir"] = os.fspath(dir)
        for origin, pairs in (
            (CONFIG_FILE, _file_pairs(Path(CONFIG_FILE))),
            (_ENVIRONMENT, _environment_pairs(os.environ)),
            ("a flag", flags.items()),
        ):
            for key, value in pairs:
                table, _, name = key.partition(".")
                if table == "kafka" and name in _BROKERS:
                    instead = _shown("bootstrap_servers", origin)
                    raise SettingsError(
                        f"{_shown(key, origin)!r} in {origin} does not name the brokers; write {instead}"
                    )
                if table in _TABLES and name:
                    full = f"spark.{name.removeprefix('spark.')}" if table == "spark" else name
                    merged.setdefault(table, {})[full] = _text(value)
                else:
                    field = key.replace("-", "_")
                    _require_known(field, key, origin)
                    merged[field] = value
                    origins[field] = origin
        try:
            return cls(**merged)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0])
            origin = origins.get(field, CONFIG_FILE)
            wanted = (
                first["msg"]
                .removeprefix("Value error, ")
                .partition(",")[0]
                .lower()
                .replace("input should", "it should")
            )
            found = (
                mask_url(repr(first["input"])) if cls.model_fields[field].repr else "what it is"
            )  # may have a password
            raise SettingsError(f"setting {_shown(field, origin)!r} in {origin} cannot be {found}: {wanted}") from None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name in _TABLES:
                value = {key: "***" if is_secret(key) else mask_url(text) for key, text in value.items()}
            elif name in ("control_url", "sql_url"):
                value = mask_url(value)
            elif name == "alert_urls" and value:
                value = "***"
            yield name, value

    @property
    def state_dir(self) -> Path:
        return self.dir / STATE

    @property
    def logs(self) -> Path:
        return self.dir / "logs"

    @property
    def kafka_dir(self) -> Path:
        return self.dir / "kafka"

    @property
    def dagster_home(self) -> Path:
        return self.dir / "dagster"

    @property
    def tmp(self) -> Path:
        return self.dir / "tmp"

    @property
    def control_database_url(self) -> str:
        """The control database's URL, or the default one."""
        return self.control_url or f"sqlite:///{self.dir / 'control.sqlite'}"


def is_secret(key: str) -> bool:
    """Whether a client property must not be printed."""
    lowered = key.lower()
    return lowered not in _PUBLIC_WORDS and any(part in lowered for part in _SECRET_PARTS)


def mask_url(url: str) -> str:
    """A URL with its passwords replaced by ``***``: that of its login, and those among its parameters."""
    scheme, slashes, rest = url.partition("://") if "://" in url else ("", "", url)
    login, at, tail = rest.rpartition("@")
    user, _, password = login.partition(":")
    masked = f"{scheme}{slashes}{user}:***@{tail}" if at and password else url
    return _PARAMETER.sub(lambda found: f"{found[1]}***" if is_secret(found[2]) and found[3] else found[0], masked)


def environment_value(variable: str) -> str | None:
    """A variable that a program names, for example for a password; None if it is not set."""
    return os.environ.get(variable)


def java_home() -> str | None:
    """``JAVA_HOME``, if it is set."""
    return os.environ.get("JAVA_HOME") or None


def cache_home() -> Path:
    """The user's cache folder according to XDG: ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _file_pairs(path: Path) -> Iterator[tuple[str, Any]]:
    if not path.is_file():
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not a TOML file: {error}") from None
    yield from _flatten(content)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _environment_pairs(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable == RACK_VARIABLE:
            continue
        name = variable.removeprefix(PREFIX).lower()
        table = next((table for table in ("kafka", "schema_registry") if name.startswith(f"{table}_")), None)
        if table is not None:
            yield f"{table}." + name.removeprefix(f"{table}_").replace("_", "."), value
        else:
            yield name, value


def _require_known(field: str, key: str, origin: str) -> None:
    known = [name for name in Settings.model_fields if name not in _TABLES]
    if field in known:
        return
    choices = [*known, *(f"{table}.<property>" for table in _TABLES)]
    near = difflib.get_close_matches(field, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "known settings are " + ", ".join(choices)
    raise SettingsError(f"unknown setting {_shown(key, origin)!r} in {origin}; {hint}")


def _shown(key: str, origin: str) -> str:
    """A setting as its origin spells it."""
    return f"{PREFIX}{key.upper().replace('.', '_')}" if origin == _ENVIRONMENT else key


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
