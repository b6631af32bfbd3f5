"""Requests as a service meets them: searches of every kind, batches, texts to encode, documents, and mistakes."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tests.faults.traffic import Ask, ask
from tests.service.place import DOCUMENTS

__all__ = ["mix", "searches"]

_WORDS: Final = (
    *("music", "terminal", "player", "library", "package", "daemon", "compiler", "game", "parser", "release"),
    *("reads", "converts", "plays", "searches", "compresses", "displays", "measures", "number", "übergröße"),
    *("files", "papers", "network", "images", "text", "documents", "chess", "background", "λόγος", "日本語", "🎵"),
)
_FUSIONS: Final[Sequence[dict[str, Any]]] = (
    {},
    {"fusion": {"method": "linear", "weights": {"dense": 0.2, "sparse": 0.8}}},
    {"fusion": {"method": "linear", "normalization": "paper"}},
    {"fusion": {"method": "rrf"}},
)


def searches(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """`count` bodies of searches: all modes and fusions, some hits or many, some candidates or many, pages, fields."""
    chance = random.Random(seed)
    return [_search(chance) for _ in range(count)]


def mix(key: str, count: int = 400, seed: int = 7) -> list[Ask]:
    """`count` requests in the order in which they are asked: two thirds are searches, one in ten is a mistake."""
    chance = random.Random(seed)
    kinds = (_searching, _batch, _encode, _document, _operation, _mistake)
    chosen = chance.choices(kinds, weights=(64, 4, 8, 8, 6, 10), k=count)
    return [kind(chance, key) for kind in chosen]


def _query(chance: random.Random) -> str:
    return " ".join(chance.choices(_WORDS, k=chance.randint(1, 12)))


def _search(chance: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"query": _query(chance), "mode": chance.choice(["hybrid"] * 3 + ["dense", "sparse"])}
    body |= {"k": chance.choice([1, 5, 10, 10, 10, 50]), "candidates": chance.choice([50, 100, 100, 500])}
    if body["mode"] == "hybrid":
        body |= chance.choice(_FUSIONS)
    if chance.random() < 0.1:
        body |= {"offset": 20, "k": 10, "fields": ["title"], "task": "fact"}
    return body


def _searching(chance: random.Random, key: str) -> Ask:
    return ask("POST", "/search", _search(chance), key=key)


def _batch(chance: random.Random, key: str) -> Ask:
    body = {"searches": [_search(chance) for _ in range(chance.randint(1, 8))]}
    return ask("POST", "/search/batch", body, key=key)


def _encode(chance: random.Random, key: str) -> Ask:
    return ask("POST", "/encode", {"text": _query(chance)}, key=key)


def _document(chance: random.Random, key: str) -> Ask:
    if chance.random() < 0.2:
        return ask("GET", "/documents/there-is-none", key=key, status=404)
    return ask("GET", f"/documents/doc-{chance.randrange(20, DOCUMENTS)}", key=key)


def _operation(chance: random.Random, key: str) -> Ask:
    path = chance.choice(["/metrics", "/livez", "/readyz", "/info", "/", "/openapi.json"])
    return ask("GET", path, same=path != "/metrics")


def _mistake(chance: random.Random, key: str) -> Ask:
    return chance.choice(list(_mistakes(key)))


def _mistakes(key: str) -> Iterator[Ask]:
    for body, status in (
        (b"{", 400),
        ({}, 422),
        ({"query": ""}, 422),
        ({"query": 5}, 422),
        ({"query": "music", "k": 1001}, 422),
        ({"query": "music", "fields": ["nothing"]}, 422),
        ({"query": "x" * 20_000}, 422),
        ({"query": "music", "unknown": [[[]]] * 50}, 422),
    ):
        yield ask("POST", "/search", body, key=key, status=status)
    yield ask(
        "POST", "/search/batch", {"searches": [{"query": "music"}, {"query": "music", "k": 0}]}, key=key, status=422
    )
    yield ask("POST", "/search", {"query": "music"}, status=401)
    yield ask("POST", "/search", {"query": "music"}, key="lr_nobody", status=401)
    yield ask("GET", "/encode", key=key, status=405)
    yield ask("GET", "/nothing", key=key, status=404)
