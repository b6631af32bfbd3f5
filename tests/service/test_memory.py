"""Freed memory goes back to the system."""

import ctypes

import pytest

from service.memory import give_back
from tests.support.memory import resident_bytes

PIECES = 10_000
PIECE = 10_000


def test_freed_memory_is_given_back() -> None:
    # By malloc itself: Python's own pools lie above it. A piece that stays behind every hundred keeps the heap from
    # shrinking by itself.
    c = ctypes.CDLL(None)
    c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [c.malloc(ctypes.c_size_t(PIECE)) for _ in range(PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE)
    for number, piece in enumerate(pieces):
        if number % 100 != 99:
            c.free(piece)
    before = resident_bytes()
    give_back()
    assert before - resident_bytes() > PIECES * PIECE / 2
    for piece in pieces[99::100]:
        c.free(piece)


def test_a_c_library_that_can_not_is_let_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    give_back()
