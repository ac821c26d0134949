"""Compile every Python file of the project once, before each worker of pytest-xdist would do it."""

# ruff: noqa: SLF001 - pytest has no public function that only rewrites assertions

import compileall
import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).parents[1]
PACKAGES = ("exporter", "rightsizer*", "simulator", "tests", "benchmarks", "scripts", "dashboards")


def compile_for_workers(config: pytest.Config) -> None:
    """Write the bytecode that is missing, on all cores; only the process that starts the workers does so."""
    if sys.dont_write_bytecode or not getattr(config.option, "numprocesses", 0):
        return
    files = sorted(path for package in PACKAGES for path in ROOT.glob(f"{package}/**/*.py"))
    cores = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")  # the configuration cannot be pickled
    children = [fork.Process(target=_compile, args=(config, files[core::cores])) for core in range(cores)]
    for child in children:
        child.start()
    for child in children:
        child.join()


def _compile(config: pytest.Config, files: list[Path]) -> None:
    """Compile files. Pytest rewrites the assertions of tests, which is two thirds of a first collection."""
    state = config.stash[rewrite.assertstate_key]
    for file in files:
        if not (file.name.startswith("test_") or file.name == "conftest.py"):
            compileall.compile_file(file, quiet=2)
            continue
        cache = rewrite.get_cache_dir(file)
        compiled = cache / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(file, compiled) is None and rewrite.try_makedirs(cache):
            stat, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, stat, compiled)
