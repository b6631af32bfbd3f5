"""The query encoder: equal to the formula, and clear about what can't be encoded."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.table import TokenTable, write_table
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.errors import UnsearchableError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.encoder import QueryEncoder
from tests.support.wordings import raises

ROWS = np.array([[3, 4], [0, 2], [0, -2], [1, 0]], np.float32)


@pytest.fixture
def encoder(tmp_path: Path) -> QueryEncoder:
    """Four letters as tokens; other letters have no token at all."""
    tokenizer = Tokenizer(models.BPE({"m": 0, "u": 1, "d": 2, "p": 3}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_table(tmp_path / "task.npy", ROWS, "float32")
    text_tokenizer = TextTokenizer.from_file(tmp_path / "tokenizer.json")
    return QueryEncoder(text_tokenizer, {"task": TokenTable.open(tmp_path / "task.npy")})


def test_dense_is_the_normalised_mean_and_sparse_the_counts(encoder: QueryEncoder) -> None:
    clock = StageClock()
    query = encoder.encode("p m UM", "task", clock)
    assert query.terms == ["3", "0", "1"]
    assert query.counts.tolist() == [1, 2, 1]
    assert query.weights.tolist() == [1.0, 2.0, 1.0]
    assert [array.tolist() for array in query.tokens] == [[0, 1, 3], [2, 1, 1], [2.0, 1.0, 1.0]]
    mean = ROWS[[3, 0, 1, 0]].mean(axis=0)
    assert query.dense == pytest.approx(mean / np.linalg.norm(mean))
    assert query.dense is not None
    assert [array.dtype.name for array in (query.dense, query.weights, query.counts)] == ["float32", "float32", "int64"]
    assert [array.dtype.name for array in query.tokens] == ["int32", "int64", "float32"]
    assert set(clock.seconds) == {"tokenize", "encode"}


def test_errors_of_both_legs_name_the_field_and_the_text(encoder: QueryEncoder) -> None:
    for dense in (True, False):
        with raises(UnsearchableError) as no_tokens:
            encoder.encode("ABC xyz", "task", StageClock(), dense=dense, field="text")
    with raises(UnsearchableError) as no_direction:
        encoder.encode("ud", "task", StageClock())
    (error,) = no_tokens.value.within("searches.4").errors
    assert (error.field, error.value) == ("searches.4.text", "ABC xyz")
    assert str(no_tokens.value.within("searches.4")).startswith("searches.4.text: nothing in this text")
    assert [(error.field, error.value) for error in no_direction.value.errors] == [("query", "ud")]


def test_a_zero_vector_is_taken_where_it_is_not_needed(encoder: QueryEncoder) -> None:
    query = encoder.encode("ud", "task", StageClock(), dense=False)
    assert query.dense is None
    assert query.terms == ["1", "2"]
    assert query.tokens.ids.size == 0


@pytest.fixture
def apart(encoder: QueryEncoder) -> QueryEncoder:
    """The table's tokens are four letters, the terms are m, x and y."""
    terms = Tokenizer(models.BPE({"x": 0, "m": 1, "y": 2}, []))
    terms.pre_tokenizer = pre_tokenizers.Whitespace()
    own = TextTokenizer.from_bytes(terms.to_str().encode(), name="terms")
    return QueryEncoder(encoder.tokenizer, encoder.tables, Vocabulary(own, None), np.array([2, 3, 5], np.float32))


@pytest.mark.parametrize("extra", [[], [("m", 0.5)], [("p", 2.0)], [("x", -1.0)]])
@pytest.mark.parametrize("text", ["m x p", "mm", "xp x", "p", "y"])
def test_two_tokenizers_encode_as_one_does_for_its_leg(
    encoder: QueryEncoder, apart: QueryEncoder, text: str, extra: list[tuple[str, float]]
) -> None:
    found = apart.encode(text, "task", StageClock(), extra_terms=extra)
    known = [(one, weight) for one, weight in extra if one in "mudp"]
    if any(letter in "mudp" for letter in text):
        one = encoder.encode(text, "task", StageClock(), extra_terms=known)
        for ours, theirs in zip(found.tokens, one.tokens, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(found.dense, one.dense)
        parts = apart.with_parts(found, "task").parts
        assert parts is not None
        assert parts.sum(axis=0) == pytest.approx(one.dense, abs=1e-6)
    elif not known:
        assert (found.dense, found.tokens.ids.size) == (None, 0)
    weights = {token: float(text.count(letter)) for token, letter in enumerate("xmy")}
    for letter, weight in extra:
        weights["xmy".find(letter)] = weights.get("xmy".find(letter), 0.0) + weight
    expected = {f"{token}": weight * (2, 3, 5)[token] for token, weight in weights.items() if weight and token >= 0}
    assert dict(zip(found.terms, found.weights.tolist(), strict=True)) == expected


def test_a_text_needs_a_token_of_one_of_two_tokenizers(apart: QueryEncoder) -> None:
    for texts, field in ((("z", ()), "query"), (("m", (("x", 1.0), ("z", 1.0))), "terms.1.text")):
        with pytest.raises(UnsearchableError) as no_tokens:
            apart.encode(texts[0], "task", StageClock(), extra_terms=texts[1])
        assert [error.field for error in no_tokens.value.errors] == [field]
    with raises(UnsearchableError):
        apart.encode("m x", "task", StageClock(), extra_terms=[("x", -1.0), ("m", -1.0)])
    assert apart.encode("x", "task", StageClock(), dense=False).tokens.ids.size == 0
    with pytest.raises(UnsearchableError):
        apart.encode("p", "task", StageClock(), dense=False)


@pytest.fixture
def of_words(encoder: QueryEncoder) -> QueryEncoder:
    return QueryEncoder(encoder.tokenizer, encoder.tables, Vocabulary(None, "english"))


def test_terms_of_words_are_stems_without_stop_words(of_words: QueryEncoder) -> None:
    query = of_words.encode("the pumps, a pump and mud", "task", StageClock(), extra_terms=[("pumping", -0.5)])
    assert dict(zip(query.terms, query.weights.tolist(), strict=True)) == {"pump": 1.5, "mud": 1.0}
    assert query.counts.tolist() == [3, 1]
    assert query.tokens.ids.tolist() == [0, 1, 2, 3]


def test_each_leg_goes_on_without_what_it_lacks(of_words: QueryEncoder) -> None:
    stop = of_words.encode("mu and the", "task", StageClock())  # mu is a word
    assert stop.terms == ["mu"]
    unknown = of_words.encode("xyz", "task", StageClock())
    assert (unknown.terms, unknown.dense) == (["xyz"], None)
    with raises(UnsearchableError):
        of_words.encode("the of", "task", StageClock(), dense=False)
