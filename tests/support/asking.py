"""Searches over HTTP in this process."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families


def ask(client: TestClient, *query: str, **fields: Any) -> dict[str, Any]:
    """The answer of a search, which must not be an error; `query` is one text or none."""
    answer = client.post("/search", json={**({"query": query[0]} if query else {}), **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ids(answer: dict[str, Any]) -> list[str]:
    """The ids of the hits of an answer."""
    return [hit["id"] for hit in answer["hits"]]


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs from one time to the next."""
    return {name: value for name, value in answer.items() if name != "timings_ms"}


def agree(one: Any, other: Any, error: float, path: str = "") -> None:
    """Assert that two answers are the same, numbers up to a relative error."""
    if isinstance(one, float) and isinstance(other, float) and error:
        assert one == pytest.approx(other, rel=error, abs=error), path
    elif isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), path
        for name in one:
            agree(one[name], other[name], error, f"{path}.{name}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        assert len(one) == len(other), path
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            agree(left, right, error, f"{path}.{place}")
    else:
        assert one == other, path


def samples(metrics: str) -> dict[tuple[str, ...], float]:
    """What `/metrics` says, by the name without `lightretriever_` and the values of the labels."""
    return {
        (sample.name.removeprefix("lightretriever_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
