"""Fuzzes one target, or all, guided by the coverage of the programs' own code: `make fuzz`.

A find does not end the run: it is kept in build/fuzz/TARGET.finds, once for each place and error.
"""

import argparse
import hashlib
import logging
import math
import os
import pathlib
import subprocess
import sys
import time
import traceback

import atheris

from tests.fuzz.fuzz_target import CORPUS, LARGEST, FuzzTarget, stretched

_PROGRAMS = ("exporter", "rightsizer", "rightsizer_extender", "rightsizer_history")
BUILD = pathlib.Path("build/fuzz")
_MAX_BYTES = 4096
"""Of an input that is mutated; every STRETCH-th one is stretched to LARGEST as well."""
STRETCH = 100_000
_MEMORY_MIB = 1024


class _Run:
    """Counts executions and keeps finds of one target; ends the process after `runs` or `seconds` (0: never).

    Seconds are of CPU time, so that a busy machine cuts nothing short, and the rate says how long a quiet one takes.
    """

    def __init__(self, target: FuzzTarget, runs: int, seconds: int) -> None:
        self._target = target
        self._runs = runs
        self._seconds = seconds or math.inf
        self._count = 0
        self._began_s = self._mutated_s = time.process_time()
        self._large = 0
        self._seen: set[str] = set()
        self._finds = BUILD / f"{target.name}.finds"
        self._finds.mkdir(parents=True, exist_ok=True)

    def one(self, data: bytes) -> None:
        """Called by the fuzzer with each input."""
        self.execute(data)
        if self._count % STRETCH == 0:
            for large in stretched(data):
                self.execute(large)
        self.end_if_due()

    def stretch(self, data: bytes) -> None:
        """Begin with large inputs: a few of them take as long as thousands of small ones."""
        for large in stretched(data):
            self.execute(large)
            self._large = self._count
            self._mutated_s = time.process_time()
            self.end_if_due()

    def end_if_due(self) -> None:
        """End the process after enough executions, or time."""
        if self._count >= self._runs or time.process_time() - self._began_s > self._seconds:
            self.end()

    def execute(self, data: bytes) -> None:
        """Parse an input, and keep it if it is a find."""
        self._count += 1
        try:
            self._target.run(data)
        except Exception as error:  # noqa: BLE001 - whatever a parser does not document is a find
            self._keep(data, error)

    def _keep(self, data: bytes, error: Exception) -> None:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "/tests/fuzz/" not in frame.filename
        ]
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key = f"{type(error).__name__} {where}"
        if key in self._seen:
            return
        self._seen.add(key)
        path = self._finds / hashlib.sha256(key.encode()).hexdigest()[:12]
        path.write_bytes(data)
        text = "".join(traceback.format_exception(error, limit=-12))
        path.with_suffix(".txt").write_text(f"{len(data)} bytes\n{text}")
        print(f"FIND {self._target.name}: {key}: {str(error)[:200]}: {path}", flush=True)

    def end(self) -> None:
        """Report, and end the process: libFuzzer never returns."""
        now_s = time.process_time()
        rate = (self._count - self._large) / max(now_s - self._mutated_s, 0.001)
        print(
            f"{self._target.name}: {self._count} executions in {now_s - self._began_s:.0f} s of CPU time, "
            f"{rate:.0f} mutated ones in a second, {len(self._seen)} finds",
            flush=True,
        )
        os._exit(1 if self._seen else 0)


def _instrumented(name: str) -> FuzzTarget:
    """The target, imported so that the fuzzer sees which code of the modules in its corpus's first line runs."""
    modules = (CORPUS / f"{name}.txt").read_text().splitlines()[0].removeprefix("# ").split()
    # Atheris takes top-level packages alone, and a second for every five modules.
    sources = (path.with_suffix("") for package in _PROGRAMS for path in pathlib.Path(package).rglob("*.py"))
    names = (".".join(path.parts).removesuffix(".__init__") for path in sources)
    others = [found for found in names if not f"{found}.".startswith(tuple(f"{one}." for one in modules))]
    with atheris.instrument_imports(include=[*_PROGRAMS, *modules], exclude=others):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - see above
    return TARGETS[name]


def _fuzz(target: FuzzTarget, runs: int, seconds: int) -> None:
    seeds = BUILD / target.name
    seeds.mkdir(parents=True, exist_ok=True)
    for data in target.corpus():
        (seeds / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data[:LARGEST])
    words = BUILD / f"{target.name}.dict"
    words.write_text(
        "".join('"' + "".join(map(r"\x{:02x}".format, word)) + '"\n' for word in target.dictionary())
    )
    run = _Run(target, runs, seconds)
    for data in target.corpus():
        run.stretch(data)
    options = {
        "dict": words,
        "max_len": _MAX_BYTES,
        "rss_limit_mb": _MEMORY_MIB,
        "timeout": 60,
        "artifact_prefix": f"{BUILD}/{target.name}.finds/",
        "print_final_stats": 0,
        "verbosity": 0,
    }
    atheris.Setup(["fuzz", *(f"-{name}={value}" for name, value in options.items()), str(seeds)], run.one)
    atheris.Fuzz()


def main() -> int:
    """Fuzz the targets one after the other; 1 if there was a find."""
    logging.disable()  # a parser's warnings are no finds
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    names = sorted(path.stem for path in CORPUS.glob("*.txt"))
    parser.add_argument("targets", nargs="*", choices=[*names, []], help="by default all of them")
    parser.add_argument("--runs", type=int, default=2_000_000, help="executions of each target")
    parser.add_argument(
        "--seconds", type=int, default=0, help="maximum CPU time for each target; 0 for no limit"
    )
    given = parser.parse_args()
    chosen = given.targets or names
    if len(chosen) == 1:
        _fuzz(_instrumented(chosen[0]), given.runs, given.seconds)
    again = [sys.executable, "-m", "tests.fuzz", f"--runs={given.runs}", f"--seconds={given.seconds}"]
    return max([subprocess.run([*again, name], check=False).returncode for name in chosen])


if __name__ == "__main__":
    sys.exit(main())
