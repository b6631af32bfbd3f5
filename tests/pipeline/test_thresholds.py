"""Term thresholds: measured as the quantile of pooled logits, and taken off wherever sparse vectors are made."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import Backbone, load_backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.training.adapter import Adapter, term_thresholds
from lightretriever.artifacts.training.recipe import LoraRecipe, TrainRecipe

from tests.support.models import save_model
from tests.support.states import padded_weights
from tests.support.tiny import tiny_documents

TEXTS = [document.full_text for document in tiny_documents(40)]
LENGTH = 24


def naive_logits(backbone: Backbone, text: str) -> torch.Tensor:
    """max of h·P over the positions between [bos] and <eos>, (V,)."""
    ids = backbone.frame(backbone.tokenizer.encode(text).tolist()[: LENGTH - 1 - len(backbone.prefix())])
    with torch.inference_mode():
        hidden = backbone.decoder(input_ids=torch.tensor([ids]), use_cache=False)[0][0]
        inner = hidden[len(backbone.prefix()) : -1]
        pooled: torch.Tensor = (inner @ backbone.head.T).amax(dim=0).float()
        return pooled


def test_a_threshold_is_the_value_that_a_share_of_texts_does_not_exceed(any_backbone: Backbone) -> None:
    logits = torch.stack([naive_logits(any_backbone, text) for text in TEXTS]).numpy()
    found = term_thresholds(any_backbone, TEXTS, LENGTH, 0.9)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.maximum(np.sort(logits, axis=0)[35], 0), rtol=1e-4, atol=1e-4)
    above = (logits > found + 1e-3).mean(axis=0)
    assert above.max() <= 0.1
    assert (found > 0).any()


def test_weights_are_taken_above_the_threshold() -> None:
    hidden, head = torch.randn(2, 5, 8), torch.randn(30, 8)
    thresholds = torch.rand(30) * 2
    lengths = torch.tensor([5, 3])
    found = padded_weights(hidden, head, lengths, thresholds)
    for row, length in enumerate(lengths.tolist()):
        pooled = (hidden[row, :length] @ head.T).amax(dim=0)
        expected = [np.log1p(max(0.0, float(value - limit))) for value, limit in zip(pooled, thresholds, strict=True)]
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert (found > 0).sum() < (padded_weights(hidden, head, lengths) > 0).sum()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A saved adapter with thresholds, of a tiny model in the same folder."""
    backbone = load_backbone(str(save_model(tmp_path / "model", "llama")), work=tmp_path, device="cpu")
    content = {
        "name": "tiny",
        "model": {"path": str(tmp_path / "model")},
        "term_thresholds": 0.9,
        "data": {"sets": [{"path": "pairs", "instruction": ""}]},
        "stages": [{"kind": "contrastive", "steps": 1, "negatives": 0}],
        "work": "work",
        "output": "adapter",
    }
    trained = Adapter(backbone, LoraRecipe(r=2), 0)
    trained.set_thresholds(term_thresholds(trained.backbone, TEXTS, LENGTH, 0.9))
    trained.save(tmp_path / "adapter", TrainRecipe.model_validate(content), None, "card")
    return tmp_path / "adapter"


def load(adapter: Path) -> Backbone:
    return load_backbone(str(adapter.parent / "model"), work=adapter.parent, adapter=str(adapter), device="cpu")


def test_an_adapter_brings_its_thresholds_along(adapter: Path) -> None:
    backbone = load(adapter)
    thresholds = np.load(adapter / "thresholds.npy")
    encoder = LanguageModel.of(backbone, EncodeRecipe(max_length=LENGTH, top_k=None))
    documents = [TEXTS[3], TEXTS[5]]
    for text, (terms, impacts) in zip(documents, encoder.encode_documents(documents).sparse or [], strict=True):
        weights = np.log1p(np.maximum(naive_logits(backbone, text).numpy() - thresholds, 0))
        found = np.zeros(backbone.embedded)
        found[terms] = impacts
        np.testing.assert_allclose(found, np.round(100 * weights), atol=1)
    kept, plain = (
        {
            term: weight
            for terms, weights in one.encode_queries(TEXTS[3:4]).sparse or []
            for term, weight in zip(terms, weights, strict=True)
        }
        for one in (encoder, LanguageModel.of(without(adapter)))
    )
    both = kept.keys() & plain.keys()  # of each, the strongest terms alone
    assert len(both) >= 10
    for term in both:
        assert np.expm1(kept[term]) == pytest.approx(np.expm1(plain[term]) - thresholds[term], rel=1e-3, abs=1e-3)


def without(adapter: Path) -> Backbone:
    """The same model, its settings without the key."""
    file = adapter / "lightretriever.json"
    settings = json.loads(file.read_text())
    assert settings["term_thresholds"] == 0.9
    file.write_text(json.dumps({key: value for key, value in settings.items() if key != "term_thresholds"}))
    plain = load(adapter)
    file.write_text(json.dumps(settings))
    assert plain.thresholds is None
    assert plain.fingerprint != load(adapter).fingerprint
    return plain


def test_thresholds_that_do_not_fit_are_refused(adapter: Path) -> None:
    file = adapter / "thresholds.npy"
    good = np.load(file)
    np.save(file, good[:-1])
    with pytest.raises(ModelError, match=r"term thresholds of shape \(\d+,\), but the model has \d+ terms"):
        load(adapter)
    np.save(file, good.astype(np.float64))
    with pytest.raises(ModelError, match="finite float32"):
        load(adapter)
    file.unlink()
    with pytest.raises(ModelError, match=r"thresholds\.npy: no term thresholds"):
        load(adapter)
