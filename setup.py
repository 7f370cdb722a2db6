"""Builds ``_columns.c`` as a plain shared library: it needs no ``Python.h``, so one wheel per platform serves every
CPython. All else is in ``pyproject.toml``."""

from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.extension import Extension


class PlainLibrary(build_ext):
    """Named without the interpreter's tag, exporting no module."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols)


class AnyPython(bdist_wheel):
    """Tagged by the platform alone."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_ext": PlainLibrary, "bdist_wheel": AnyPython})
