"""Values of declared fields: what is taken, what is refused, and in which form the index gets it."""

import pytest

from lightretriever.artifacts.documents.fields import FieldKind, indexed_values, milliseconds

FIELDS: dict[str, FieldKind] = {"source": "keyword", "year": "number", "published": "date"}


@pytest.mark.parametrize(
    ("document", "values"),
    [
        ({}, []),
        ({"source": None, "year": None, "other": 3}, []),
        ({"source": "wiki", "year": 2020}, [("source", "wiki"), ("year", "2020.0")]),
        (
            {"source": ["a", "ü", ""], "year": [1, 2.5]},
            [("source", "a"), ("source", "ü"), ("source", ""), ("year", "1.0"), ("year", "2.5")],
        ),
        ({"source": True}, [("source", "true")]),
        ({"year": -0.0}, [("year", "0.0")]),
        ({"published": ["1970-01-01", "1970-01-02T00:00:01+01:00"]}, [("published", "0"), ("published", "82801000")]),
        ({"source": []}, []),
    ],
)
def test_values(document: dict[str, object], values: list[tuple[str, str]]) -> None:
    assert indexed_values(document, FIELDS) == values


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"source": 3}, 'field "source": expected a text, found 3'),
        ({"source": ["a", {"b": 1}]}, "expected a text, found {'b': 1}"),
        ({"source": "x" * 40_000}, "at most 32,766 bytes, this one has 40,000"),
        ({"source": "\ud800"}, "not valid Unicode"),
        ({"year": "2020"}, "field \"year\": expected a number, found '2020'"),
        ({"year": True}, "expected a number, found True"),
        ({"year": 10**400}, "expected a finite number"),
        ({"year": float("nan")}, "expected a finite number, found nan"),
        ({"published": 2020}, "expected a date such as 2024-05-31"),
        ({"published": "last year"}, "found 'last year'"),
        ({"published": "2020-13-01"}, "expected a date"),
        ({"published": "2024-05-31+02:00"}, "found '2024-05-31+02:00'"),
        ({"published": "2024-05-31_12:00"}, "expected a date"),
        ({"published": "2024-W22"}, "expected a date"),
    ],
)
def test_a_value_of_another_kind_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 # the message is looked at below
        indexed_values(document, FIELDS)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00.123456Z", 123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01", -62_135_596_800_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ("2024-02-29", 1_709_164_800_000),
        ("20240229", 1_709_164_800_000),
        ("2024-W09-4", 1_709_164_800_000),
        ("2024-02-29 00:00+00:00", 1_709_164_800_000),
    ],
)
def test_dates_are_milliseconds_since_1970(text: str, expected: int) -> None:
    assert milliseconds(text) == expected
