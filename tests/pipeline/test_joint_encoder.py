"""Two bi-encoders whose vectors stand side by side."""

import numpy as np
import pytest
import torch

from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.biencoder import JointEncoder, load_biencoder, load_biencoders
from tests.support.biencoder import save_biencoder
from tests.support.tiny import tiny_documents
from tests.support.wordings import raises

TEXTS = [document.full_text for document in tiny_documents(20)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of two encoders with vectors of 32 and 16 values and different tokenizers; the second has a prompt."""
    folder = tmp_path_factory.mktemp("joint")
    small = save_biencoder(folder / "small", hidden_size=16, vocabulary=150, prompts={"query": "search : "})
    return [str(save_biencoder(folder / "large")), str(small)]


@pytest.fixture(scope="module")
def joint(paths: list[str]) -> JointEncoder:
    found = load_biencoders(" + ".join(paths), device="cpu")
    assert isinstance(found, JointEncoder)
    return found


def test_a_cosine_is_the_mean_of_the_encoders_cosines(joint: JointEncoder, paths: list[str]) -> None:
    each = [load_biencoder(path, device="cpu") for path in paths]
    assert joint.hidden_size == 48
    queries, documents = TEXTS[:5], TEXTS[5:]
    found = joint.encode_queries(queries).dense @ joint.encode_documents(documents).dense.T
    expected = [one.encode_queries(queries).dense @ one.encode_documents(documents).dense.T for one in each]
    np.testing.assert_allclose(found, np.mean(expected, axis=0), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(joint.encode_documents(documents).dense, axis=1), 1, atol=1e-5)


def test_tokens_are_the_first_ones_and_are_read_by_all(joint: JointEncoder, paths: list[str]) -> None:
    first, second = (load_biencoder(path, device="cpu") for path in paths)
    assert joint.tokenizer_json == first.tokenizer_json
    assert joint.longest == first.longest
    (token,) = joint.tokenizer.encode("music")
    (row,) = joint.token_states()(torch.tensor([token])).numpy() * np.sqrt(2)
    np.testing.assert_allclose(row[:32], first.encode_queries(["music"]).dense[0], atol=1e-5)
    np.testing.assert_allclose(row[32:], second.encode_queries(["music"]).dense[0], atol=1e-5)


def test_a_text_is_cut_where_one_encoder_cuts_it(joint: JointEncoder, paths: list[str]) -> None:
    word = next(one for one in TEXTS[0].lower().split() if one.isalpha())
    lengths = (3, 60, 200)
    texts = [" ".join([word] * length) for length in lengths]
    each = [load_biencoder(path, device="cpu").are_cut(texts) for path in paths]
    assert joint.are_cut(texts) == [any(pair) for pair in zip(*each, strict=True)]
    assert joint.are_cut(texts)[0] is False
    assert joint.are_cut(texts)[2] is True


def test_other_encoders_and_another_order_are_another_model(joint: JointEncoder, paths: list[str]) -> None:
    turned = load_biencoders(" + ".join(reversed(paths)), device="cpu")
    assert turned.fingerprint != joint.fingerprint
    assert load_biencoders(paths[0], device="cpu").fingerprint == load_biencoder(paths[0], device="cpu").fingerprint
    for bad in (f"{paths[0]} + ", f" + {paths[0]}"):
        with raises(ModelError):
            load_biencoders(bad, device="cpu")
