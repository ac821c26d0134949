"""Replays the corpus, and large inputs that once took seconds, ended in another error, or crashed Python."""

import pytest

from tests.fuzz.fuzz_target import CORPUS, LARGEST
from tests.fuzz.targets import TARGETS

_MOST_BYTES = 16 << 10


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_each_input_is_parsed_or_refused(name: str) -> None:
    """No input of the corpus ends in an error that the parser does not document."""
    for data in TARGETS[name].corpus():
        TARGETS[name].run(data)


def test_corpus_every_target_has_a_small_one() -> None:
    """A target without seeds would be fuzzed blindly, and a large corpus would slow the tests down."""
    assert {path.stem: path.stat().st_size <= _MOST_BYTES for path in CORPUS.iterdir()} == dict.fromkeys(
        TARGETS, True
    )


def _times(part: bytes, around: bytes = b"%s") -> bytes:
    return around % (part * (LARGEST // len(part)))


def _multiplying(key: bytes) -> bytes:
    """Nine lines of YAML, of which each stands for ten times the one before."""
    lines = [b"a: &a {k: v}"] + [b"a: &a {%s: [%s]}" % (key, b",".join([b"*a"] * 10))] * 8
    return b"\n".join([*lines, b"apiVersion: *a", b"kind: Plan"])


LARGE = {
    "long-number-for-a-duration": ("notes", _times(b"9")),
    "quotes-that-never-end": ("control-state", b'"' + _times(b'\\"')),
    "deep-answer-of-prometheus": ("prometheus-vector", _times(b'{"a":')),
    "deep-object": ("cluster", _times(b'{"a":', b"pods %s")),
    "deep-error-of-the-api-server": ("api-refusal", _times(b'{"a":')),
    "error-that-repeats-objects": (
        "api-refusal",
        _times(b"Invalid value: {", b'{"kind":"Status","status":"Failure","message":"%s"}'),
    ),
    "error-that-repeats-expressions": (
        "api-refusal",
        _times(b"expression '", b'{"kind":"Status","status":"Failure","message":"%s"}'),
    ),
    "deep-yaml-in-one-line": ("objects-file", _times(b"- ")),
    "deep-yaml-lists": ("objects-file", b"a: " + _times(b"[")),
    "merge-keys-of-objects": ("objects-file", _multiplying(b"<<")),
    "merge-keys-of-a-kubeconfig": ("exporter-kubeconfig", _multiplying(b"<<")),
    "merge-keys-of-a-plan": ("approvals", _multiplying(b"<<")),
    "aliases-of-a-plan": ("approvals", _multiplying(b"k")),
    "blanks-in-a-selector": (
        "signals",
        _times(
            b" ",
            b"apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Signals\n"
            b"labels: {namespace: n, pod: p, device: d}\n"
            b"quantities: [{quantity: activity, selector: 'a{b=\"\"%sx'}]",
        ),
    ),
    "deep-kubeconfig": ("exporter-kubeconfig", _times(b"[")),
    "list-of-unknown-metrics": (
        "metrics-file",
        b"".join(b"DCGM_FI_DEV_GPU_UTIL%d,gauge,x\n" % number for number in range(2000)),
    ),
}


@pytest.mark.parametrize(("name", "data"), LARGE.values(), ids=LARGE)
def test_target_large_input_is_refused_in_time(name: str, data: bytes) -> None:
    """An input of 64 KiB takes no time in the square of its size, and no stack that Python has not."""
    TARGETS[name].run(data)
