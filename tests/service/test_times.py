"""Times that are counted later are those of Prometheus' own histogram."""

import random
import threading
from collections.abc import Sequence

import pytest
from lightretriever.service.observability.times import Times
from prometheus_client import CollectorRegistry, Histogram, generate_latest

BOUNDS = (0.001, 0.01, 0.1)


def text_of(kind: type[Histogram], amounts: Sequence[tuple[str, float]]) -> bytes:
    registry = CollectorRegistry()
    by_label = kind("labelled", "Some.", ["name"], buckets=BOUNDS, registry=registry)
    alone = kind("alone", "Some.", buckets=BOUNDS, registry=registry)
    for name, amount in amounts:
        by_label.labels(name).observe(amount)
        alone.observe(amount)
    lines = generate_latest(registry).splitlines(keepends=True)
    return b"".join(line for line in lines if b"_created" not in line)


def test_they_tell_what_the_library_tells() -> None:
    chance = random.Random(1)
    amounts = [(chance.choice("abc"), 2.0 ** -chance.randrange(12)) for _ in range(10_000)]
    amounts += [("a", bound) for bound in BOUNDS] + [("d", 0.0)]
    assert text_of(Times, amounts) == text_of(Histogram, amounts)
    assert text_of(Times, []) == text_of(Histogram, [])


def test_they_are_counted_without_being_read() -> None:
    times = Times("some", "Some.", ["name"], buckets=BOUNDS, registry=None)
    one, other = times.labels("one"), times.labels("other")
    for _ in range(10_000):
        one.observe(0.5)
    other.observe(0.5)
    assert len(one._waiting) < 5_000
    times.count()
    assert (len(one._waiting), len(other._waiting)) == (0, 0)


def test_none_is_lost_or_counted_twice_between_threads() -> None:
    registry = CollectorRegistry()
    times = Times("some", "Some.", buckets=BOUNDS, registry=registry)

    def observe() -> None:
        for number in range(20_000):
            times.observe(1.0)
            if number % 1000 == 0:
                times.count()

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        generate_latest(registry)
    assert registry.get_sample_value("some_count") == 80_000
    assert registry.get_sample_value("some_sum") == 80_000


def test_labels_are_needed_where_there_are_some() -> None:
    with pytest.raises(AttributeError):
        Times("some", "Some.", ["name"], buckets=BOUNDS, registry=None).observe(1.0)
