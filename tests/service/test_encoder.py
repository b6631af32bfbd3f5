"""The query encoder: equal to the formula, and clear about what can't be encoded."""

from pathlib import Path

import numpy as np
import pytest
from lightretriever.artifacts.tokens.table import TokenTable, write_table
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from lightretriever.service.errors import NoDirectionError, NoTokensError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.encoder import QueryEncoder
from tokenizers import Tokenizer, models, pre_tokenizers

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
    assert query.terms.tolist() == [0, 1, 3]
    assert query.counts.tolist() == [2, 1, 1]
    assert query.term_weights.tolist() == [2.0, 1.0, 1.0]
    assert query.weights.tolist() == [2.0, 1.0, 1.0]
    mean = ROWS[[3, 0, 1, 0]].mean(axis=0)
    assert query.dense == pytest.approx(mean / np.linalg.norm(mean))
    assert query.dense is not None
    assert [array.dtype.name for array in (query.dense, query.weights, query.terms)] == ["float32", "float32", "int32"]
    assert set(clock.seconds) == {"tokenize", "encode"}


def test_many_tokens_are_counted_like_few(encoder: QueryEncoder) -> None:
    query = encoder.encode("mupp" * 500 + " p", "task", StageClock())
    assert query.terms.tolist() == [0, 1, 3]
    assert query.counts.tolist() == query.term_weights.tolist() == [500, 500, 1001]
    dtypes = [array.dtype.name for array in (query.terms, query.counts, query.term_weights)]
    assert dtypes == ["int32", "int64", "float32"]


def test_with_idf_a_token_weighs_count_times_idf(encoder: QueryEncoder) -> None:
    idf = np.array([0.1, 2, 3, 7.25], np.float32)
    query = QueryEncoder(encoder.tokenizer, encoder.tables, idf).encode("p m UM", "task", StageClock())
    assert query.counts.tolist() == [2, 1, 1]
    assert query.weights.dtype == np.float32
    assert query.weights.tolist() == [float(np.float32(2) * np.float32(0.1)), 2.0, 7.25]
    assert query.dense == pytest.approx(encoder.encode("p m UM", "task", StageClock()).dense)


def test_the_order_of_tokens_does_not_matter_but_their_number_does(encoder: QueryEncoder) -> None:
    first, second = (encoder.encode(text, "task", StageClock()).dense for text in ("um", "m u"))
    assert first == pytest.approx(second)
    assert encoder.encode("uum", "task", StageClock()).dense != pytest.approx(first)


def test_a_query_without_tokens_is_refused_by_both_legs_alike(encoder: QueryEncoder) -> None:
    for dense in (True, False):
        with pytest.raises(NoTokensError, match="no token"):
            encoder.encode("ABC xyz", "task", StageClock(), dense=dense)


def test_errors_name_the_field_and_the_text(encoder: QueryEncoder) -> None:
    with pytest.raises(NoTokensError) as no_tokens:
        encoder.encode("xyz", "task", StageClock(), field="text")
    with pytest.raises(NoDirectionError) as no_direction:
        encoder.encode("ud", "task", StageClock())
    (error,) = no_tokens.value.within("searches.4").errors
    assert (error.field, error.value) == ("searches.4.text", "xyz")
    assert str(no_tokens.value.within("searches.4")).startswith("searches.4.text: the tokenizer")
    assert [(error.field, error.value) for error in no_direction.value.errors] == [("query", "ud")]


def test_a_zero_vector_is_refused_where_it_is_needed(encoder: QueryEncoder) -> None:
    with pytest.raises(NoDirectionError, match="mode 'sparse'"):
        encoder.encode("ud", "task", StageClock())
    query = encoder.encode("ud", "task", StageClock(), dense=False)
    assert query.dense is None
    assert query.terms.tolist() == [1, 2]


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("idf", [None, np.array([0.1, 2, 3, 7.25], np.float32)])
def test_a_batch_is_encoded_to_the_same(encoder: QueryEncoder, idf: np.ndarray | None, dense: bool) -> None:
    encoder = QueryEncoder(encoder.tokenizer, encoder.tables, idf)
    texts = ["p m UM", "u", "m", "mupp" * 40, "u", "pd"]
    clock = StageClock()
    batch = list(encoder.encode_batch(texts, "task", clock, dense=dense))
    assert set(clock.seconds) == ({"tokenize", "encode"} if dense else {"tokenize"})
    for text, found in zip(texts, batch, strict=True):
        expected = encoder.encode(text, "task", StageClock(), dense=dense)
        for name in ("terms", "counts", "term_weights", "weights", "dense"):
            ours, theirs = getattr(found, name), getattr(expected, name)
            np.testing.assert_array_equal(ours, theirs, err_msg=name, strict=dense or name != "dense")
    assert list(encoder.encode_batch([], "task", StageClock(), dense=dense)) == []


def test_errors_of_a_batch_name_the_text(encoder: QueryEncoder) -> None:
    for dense in (True, False):
        with pytest.raises(NoTokensError) as no_tokens:
            encoder.encode_batch(["m", "xyz", "m"], "task", StageClock(), dense=dense)
    with pytest.raises(NoDirectionError) as no_direction:
        encoder.encode_batch(["m", "u", "ud"], "task", StageClock())
    assert [(error.field, error.value) for error in no_tokens.value.errors] == [("queries.1", "xyz")]
    assert [(error.field, error.value) for error in no_direction.value.errors] == [("queries.2", "ud")]
    assert len(list(encoder.encode_batch(["ud"], "task", StageClock(), dense=False))) == 1
