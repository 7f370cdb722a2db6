"""Databases that rows are published to."""

import pytest

from tests.databases import Database, PostgresqlServer


@pytest.fixture(scope="session")
def postgresql_server():
    server = PostgresqlServer()
    yield server
    server.close()


@pytest.fixture
def postgresql(postgresql_server, request):
    with postgresql_server.database(request.node.name) as database:
        yield database


@pytest.fixture
def sqlite(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'out.sqlite'}")
    yield database
    database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    return request.getfixturevalue(request.param)
