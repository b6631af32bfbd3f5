"""Tests of an error name its kind and what its message must name, not its words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from lightretriever.artifacts import errors

E = TypeVar("E", bound=Exception)


@contextmanager
def raises(kind: type[E] | tuple[type[E], ...], *, naming: str = "") -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of a kind whose message contains `naming`: the field, value or file that is wrong.

    An error of `lightretriever.artifacts.errors` must also say what to do: its message ends with a remedy. Only Java's
    own exceptions, which are passed on, have none.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert naming in str(error), f"{str(error)!r} doesn't name {naming!r}"
    own = type(error).__module__ == errors.__name__ and not isinstance(error, errors.JavaError)
    if own and isinstance(error, errors.LightRetrieverError):
        assert error.remedy.endswith("."), f"{str(error)!r} has no remedy"
