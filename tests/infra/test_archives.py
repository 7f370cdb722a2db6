"""Archives for executors: what is in them runs with the Python of whoever unpacks them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from weir.infra.spark.archives import ENDINGS, write_archive


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    (tmp_path / "shop.py").write_text("name = 'packed'\n")
    return {"shop.py": tmp_path / "shop.py", "prices/list.py": tmp_path / "shop.py"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_unpacked_archive_has_a_python_that_imports_what_is_packed(tmp_path, files, ending):
    told, place = list[int](), tmp_path / "else where"
    written = write_archive(tmp_path / f"shop{ending}", files, told.append)
    assert written == (tmp_path / f"shop{ending}").stat().st_size
    assert told == [1, 2]
    with tarfile.open(tmp_path / f"shop{ending}") as archive:
        archive.extractall(place, filter="data")
    command = [place / "bin" / "python", "-c", "import shop, prices.list, sys; print(shop.name, sys.version)"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}").symlink_to(sys.executable)
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    assert subprocess.run(command, env=path, capture_output=True, text=True).stdout == f"packed {sys.version}\n"


def test_a_host_without_that_python_is_told_so(tmp_path, files):
    write_archive(tmp_path / "shop.tar.gz", files)
    with tarfile.open(tmp_path / "shop.tar.gz") as archive:
        archive.extractall(tmp_path / "here", filter="data")
    (tmp_path / "empty").mkdir()
    command, path = ["/bin/sh", tmp_path / "here" / "bin" / "python"], {"PATH": str(tmp_path / "empty")}
    ended = subprocess.run(command, env=path, capture_output=True, text=True)
    assert ended.returncode == 127
    assert f"there is no python{sys.version_info.major}.{sys.version_info.minor} here" in ended.stderr


def test_an_archive_that_cannot_be_written_leaves_the_older_one(tmp_path, files):
    write_archive(tmp_path / "shop.tar.gz", files)
    before = (tmp_path / "shop.tar.gz").read_bytes()
    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "shop.tar.gz", {**files, "gone.py": tmp_path / "gone.py"})
    assert (tmp_path / "shop.tar.gz").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"shop.py", "shop.tar.gz"}
