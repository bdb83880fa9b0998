"""Exceptions: fields, text, pickle and copy. Spec: 00 §5."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from dsh_codec import errors
from dsh_codec.errors import DshCodecError

CLASSES = [getattr(errors, name) for name in errors.__all__]
PLACES = ("path", "line", "offset", "seq", "frame", "rule")
EXTRA: dict[str, dict[str, object]] = {
    "NewerFormatError": {"found": 4.5, "supported": 4},
    "SeqGapError": {"expected": 3, "got": "x"},
    "StreamError": {"record": 7},
    "UnknownChunkError": {"record": 7},
    "SidecarError": {"reason": "version"},
    "ReplayError": {"reason": "unconsumed"},
    "LimitExceededError": {"limit": "max_depth", "value": 9},
}


def make(cls: type[DshCodecError]) -> DshCodecError:
    extra = EXTRA.get(cls.__name__, {})
    return cls("what is wrong", "a/b.jsonl", 3, 40, 1, 0, "A1", *extra.values())


def fields_of(error: DshCodecError) -> dict[str, object]:
    names = ("message", *PLACES, *EXTRA.get(type(error).__name__, {}))
    return {name: getattr(error, name) for name in names}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, *(
        lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    )],
)  # fmt: skip
def test_error_survives_pickle_and_copy(cls, again):
    error = make(cls)
    other = again(error)
    assert type(other) is cls
    assert fields_of(other) == fields_of(error)
    assert str(other) == str(error)
    expected = {
        "message": "what is wrong", "path": "a/b.jsonl", "line": 3, "offset": 40,
        "seq": 1, "frame": 0, "rule": "A1",
    }  # fmt: skip
    assert fields_of(error) == expected | EXTRA.get(cls.__name__, {})


@pytest.mark.parametrize("cls", CLASSES)
def test_error_without_arguments(cls):
    error = cls()
    assert all(getattr(error, name) is None for name in PLACES)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own


@pytest.mark.parametrize("cls", CLASSES)
def test_located_fills_only_what_is_unknown(cls):
    error = cls("x", None, 2).located(path=Path("p"), line=9, offset=5, rule="B")
    assert type(error) is cls
    assert (error.path, error.line, error.offset, error.rule) == ("p", 2, 5, "B")
    located = make(cls).located(seq=9)
    assert fields_of(located) == fields_of(make(cls))


def test_text_names_the_places():
    text = str(make(errors.RowError))
    assert text == "a/b.jsonl: what is wrong (line 3, byte 40, seq 1, frame 0, rule A1)"
    assert str(errors.RowError("bare")) == "bare"


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("StreamError", (errors.CorruptLogError, TypeError)),
        ("JsonSyntaxError", (errors.RowError, ValueError)),
        ("SessionLockedError", (DshCodecError, BlockingIOError)),
        ("MigrationRefusedError", (errors.UnsupportedError,)),
        ("SeqGapError", (errors.RowError, errors.CorruptLogError)),
        ("UnknownChunkError", (errors.StreamError,)),
    ],
)
def test_second_bases(name, bases):
    """Design 4."""
    assert all(issubclass(getattr(errors, name), base) for base in bases)


@pytest.mark.parametrize("name", ["NewerFormatError", "UnsupportedError"])
def test_intact_logs_are_never_called_corrupt(name):
    """Spec 00 §4.2, §5."""
    assert not issubclass(getattr(errors, name), errors.CorruptLogError)
