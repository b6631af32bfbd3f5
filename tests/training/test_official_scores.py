"""Scores by the formulas of the official implementation, written down here independently, on tiny models.

The last tests compare with numbers of its notebooks, where the folder that LIGHTRETRIEVER_QWEN names has `base/`
(Qwen2.5-1.5B) and `adapter/` (lightretriever-qwen2.5-1.5b).
"""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel, instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.artifacts.training.losses import contrastive_loss, distillation_loss, matryoshka_scores
from tests.support.models import load, save_model
from tests.support.tiny import tiny_documents

INSTRUCTION = "Find it"
QWEN = os.environ.get("LIGHTRETRIEVER_QWEN")
WITH_QWEN = pytest.mark.skipif(QWEN is None, reason="LIGHTRETRIEVER_QWEN names no folder")


def states(model_folder: Path, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states (L, H) and logits (L, V) by a plain forward pass of the whole model."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return out.hidden_states[-1][0], out.logits[0]


def test_documents(model_folder: Path, backbone: Backbone) -> None:
    """Dense: the last token, L2. Sparse: log1p(relu(max)) of the logits, first and last position masked, times 100."""
    document = tiny_documents(3)[0]
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    ids = [*tokenizer.encode(document.full_text.lower(), add_special_tokens=True), tokenizer.eos_token_id]
    hidden, logits = states(model_folder, ids)
    mask = torch.ones(len(ids), dtype=torch.bool)
    mask[0] = mask[-1] = False
    pooled = logits.masked_fill(~mask[:, None], torch.finfo(logits.dtype).min).amax(dim=0)
    expected = torch.round(100 * torch.log1p(torch.relu(pooled)))[: backbone.embedded]
    made = LanguageModel.of(backbone, EncodeRecipe(max_length=512, top_k=None)).encode_documents([document.full_text])
    np.testing.assert_allclose(made.dense[0], torch.nn.functional.normalize(hidden[-1], dim=0).numpy(), atol=1e-3)
    impacts = np.zeros(backbone.embedded)
    [(terms, found)] = made.sparse or []
    impacts[terms] = found
    np.testing.assert_allclose(impacts, expected.numpy(), atol=1)


def test_table_rows_and_dense_queries(model_folder: Path, backbone: Backbone, tmp_path: Path) -> None:
    """A row is the last state of `[bos] prompt token <eos>`; a query is an EmbeddingBag's mean, L2."""
    table = torch.from_numpy(token_rows(LanguageModel.of(backbone), INSTRUCTION, tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    query = tokenizer.encode("music player", add_special_tokens=False)
    prompt = tokenizer.encode(f"instruct: {INSTRUCTION}\nquery: ".lower(), add_special_tokens=True)
    for token in query:
        hidden, _ = states(model_folder, [*prompt, token, tokenizer.eos_token_id])
        torch.testing.assert_close(table[token], hidden[-1], atol=1e-4, rtol=1e-3)
    bag = torch.nn.EmbeddingBag.from_pretrained(table, mode="mean")
    expected = torch.nn.functional.normalize(bag(torch.tensor(query), torch.tensor([0])), dim=1)
    torch.testing.assert_close(torch.nn.functional.normalize(table[query].mean(dim=0), dim=0), expected[0])


def test_texts_begin_with_bos_only_where_the_tokenizer_says_so(model_folder: Path, tmp_path: Path) -> None:
    without = save_model(tmp_path / "without", "llama", bos_token=None)
    backbone = load(without, tmp_path)
    assert (backbone.bos_id, backbone.frame([9])) == (None, [9, backbone.eos_id])
    assert instruction_prefix(backbone, "") == [backbone.eos_id]
    assert load(model_folder, tmp_path).bos_id is not None
    named = AutoTokenizer.from_pretrained(without)
    named.bos_token = "<|im_start|>"  # named, but not put before a text
    named.save_pretrained(without)
    assert load(without, tmp_path).bos_id is None
    assert load(without, tmp_path, bos_token="<|im_start|>").bos_id is not None


def test_loss_is_a_sum_over_prefixes_and_both_legs_follow_the_full_dense_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, documents = torch.randn(3, 8, generator=generator), torch.randn(5, 8, generator=generator)
    positives, hidden = torch.tensor([0, 1, 2]), torch.zeros(3, 5, dtype=torch.bool)
    expected = torch.zeros(())
    for size in (4, 8):
        one, other = (torch.nn.functional.normalize(part[:, :size], dim=1) for part in (queries, documents))
        expected += torch.nn.functional.cross_entropy(one @ other.T / 0.02, positives)
    ladder = matryoshka_scores(queries, documents, [4])
    total = torch.stack([contrastive_loss(one, positives, hidden, 0.02) for one in ladder]).sum()
    torch.testing.assert_close(total, expected)
    sparse, full = torch.randn(3, 5, generator=generator), ladder[-1]
    target = torch.softmax(full / 0.02, dim=1)
    divergence = (target * (torch.log_softmax(full / 0.02, dim=1) - torch.log_softmax(sparse, dim=1))).sum(dim=1)
    torch.testing.assert_close(distillation_loss(sparse, full / 0.02), divergence.mean())


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder, work = Path(str(QWEN)), tmp_path_factory.mktemp("qwen")
    return load(folder / "base", work, adapter=str(folder / "adapter"), dtype="bfloat16", device="auto")


QUERIES = ["How tall is Mount Everest?", "Who invented the light bulb?"]
CORPUS = [
    "Mount Everest is the highest mountain in the world, about 8,848 meters tall.",
    "Thomas Edison invented the electric light bulb.",
    "Mount Fuji is the tallest mountain in Japan.",
]


@WITH_QWEN
def test_golden_token_ids(qwen: Backbone) -> None:
    found: list[Counter[int]] = [Counter(qwen.tokenizer.encode(query).tolist()) for query in QUERIES]
    assert found == [Counter([5158, 16217, 374, 6470, 3512, 477, 30]), Counter([14623, 35492, 279, 3100, 45812, 30])]


@WITH_QWEN
def test_golden_sparse_scores(qwen: Backbone) -> None:
    """The notebook masks no position and adds no space."""
    unmasked = LanguageModel.of(replace(qwen, sparse_inner=False), EncodeRecipe(top_k=None))
    rows = unmasked.encode_documents(CORPUS).sparse or []
    scores = np.zeros((2, 3))
    for row, query in enumerate(QUERIES):
        for column, (terms, found) in enumerate(rows):
            impacts = dict(zip(terms.tolist(), found.tolist(), strict=True))
            scores[row, column] = sum(impacts.get(token, 0) for token in qwen.tokenizer.encode(query).tolist()) / 100
    np.testing.assert_allclose(scores, [[12.949, 1.281, 9.188], [1.770, 11.746, 1.816]], atol=0.15)


@WITH_QWEN
def test_golden_dense_scores(qwen: Backbone, tmp_path: Path) -> None:
    instruction = "Given a web search query, retrieve relevant passages that answer the query"
    encoder = LanguageModel.of(qwen)
    table, dense = token_rows(encoder, instruction, tmp_path), encoder.encode_documents(CORPUS).dense
    queries = np.stack([table[qwen.tokenizer.encode(query).tolist()].mean(axis=0) for query in QUERIES])
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    np.testing.assert_allclose(queries @ dense.T, [[0.3945, 0.0483, 0.3105], [0.0076, 0.3945, 0.0148]], atol=0.02)
