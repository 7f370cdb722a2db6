"""The login of an embedded broker, and the files of client properties that tell it to clients.

The supervisor makes a password at the folder's first start and keeps it in these files; who may use the broker, and
nobody else, may read them. There are two, since librdkafka refuses Java's ``sasl.jaas.config`` and Java's clients know
no ``sasl.password``.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from weir.infra.kafka.files import BrokerFiles

USER = "weir"
MECHANISM = "PLAIN"
PASSWORD = "sasl.password"
_PASSWORD_BYTES = 32


def new_password() -> str:
    """A random one; letters, digits, dashes and underscores, so that no file has to escape it."""
    return secrets.token_urlsafe(_PASSWORD_BYTES)


def jaas_config(password: str, *, is_broker: bool = False) -> str:
    """The login module that a Java client logs in with; a broker's also accepts the login."""
    accepted = f' user_{USER}="{password}"' if is_broker else ""
    return (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{USER}" password="{password}"{accepted};'
    )


def client_properties(bootstrap_servers: str, password: str) -> dict[str, str]:
    """What clients of librdkafka need."""
    return {**_common(bootstrap_servers), "sasl.username": USER, PASSWORD: password}


def java_client_properties(bootstrap_servers: str, password: str) -> dict[str, str]:
    """What Java's clients need."""
    return {**_common(bootstrap_servers), "sasl.jaas.config": jaas_config(password)}


def write_logins(files: BrokerFiles, bootstrap_servers: str, password: str) -> None:
    """Write both files."""
    write_properties(files.client, client_properties(bootstrap_servers, password))
    write_properties(files.java_client, java_client_properties(bootstrap_servers, password))


def password_of(broker_properties: Mapping[str, str]) -> str | None:
    """The password that a broker with these properties asks for; None if it asks for none."""
    module = next((value for name, value in broker_properties.items() if name.endswith("sasl.jaas.config")), "")
    found = re.search(r'password="([^"]+)"', module)
    return found and found[1]


def _common(bootstrap_servers: str) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
    }


def read_properties(path: Path) -> dict[str, str]:
    """The properties in a file that ``write_properties`` wrote; none if there is no file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Replace a file atomically by one that only its owner may read, and the group where it may write the folder."""
    mode = 0o660 if _umask() & 0o070 == 0 else 0o600
    fresh = path.with_suffix(".fresh")
    fresh.unlink(missing_ok=True)
    with open(fresh, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, mode)) as file:
        file.writelines(f"{name}={value}\n" for name, value in properties.items())
    os.replace(fresh, path)


def _umask() -> int:
    """That of this process, which ``os.umask`` tells only by setting another for a moment, also for other threads."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask:"))
