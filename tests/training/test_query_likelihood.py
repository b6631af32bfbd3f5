from dataclasses import replace
from pathlib import Path
from typing import Any

import lightretriever.artifacts.training.query_likelihood as module
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.pipeline.model import Backbone, load_backbone
from lightretriever.artifacts.pipeline.states import attention_masks, layer_kinds
from lightretriever.artifacts.training.query_likelihood import QueryLikelihood, attention_block, corrupt
from lightretriever.artifacts.training.recipe import DataRecipe, QueryLikelihoodStage, SetRecipe
from lightretriever.artifacts.training.types import Batch, Example, StepContext, TrainingSet
from transformers import DynamicCache

from tests.support.models import CONFIGS, save_model
from tests.support.tiny import tiny_documents

CONTEXT = StepContext(step=3, steps=10, seed=11)
DATA = DataRecipe(sets=[SetRecipe(path=Path("set"), instruction="find")], max_query_length=12, max_document_length=60)


def trainable(kind: str, folder: Path) -> Backbone:
    """A tiny model whose decoder learns, in place of an adapter; the LM head is frozen as it is under one."""
    backbone = load_backbone(str(save_model(folder / kind, kind)), work=folder / "work", device="cpu")
    backbone.decoder.requires_grad_(True)
    return backbone


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return trainable("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def any_backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return trainable(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Six pairs of many lengths: a document without text and one that is cut are among them."""
    documents = {document.id: document.full_text for document in tiny_documents(20)} | {"empty": ""}
    pairs = {
        "music": "terminal music player",
        "long": "retrieval",
        "empty": "anything at all that nobody can know",
        "greek": "fox and dog",
        "doc-12": "a library",
        "doc-13": "which package reads large images, and how fast does it do so on every machine",
    }
    examples = [Example(row, f"q{row}", query, name) for row, (name, query) in enumerate(pairs.items())]
    return Batch(TrainingSet("set", "find", 1.0, examples, documents), examples, [[one.positive] for one in examples])


def objective(backbone: Backbone, *, corruption: float = 0.6, chunk_tokens: int | None = None) -> QueryLikelihood:
    stage = QueryLikelihoodStage(kind="query_likelihood", steps=10, corruption=corruption, chunk_tokens=chunk_tokens)
    return QueryLikelihood(backbone, stage, DATA)


def gradients(backbone: Backbone) -> dict[str, torch.Tensor]:
    """The gradients that have come together, which are forgotten."""
    found = {name: one.grad for name, one in backbone.model.named_parameters() if one.grad is not None}
    backbone.model.zero_grad()
    return found


def texts_of(backbone: Backbone, example: Example, documents: dict[str, str]) -> tuple[list[int], list[int]]:
    """`[bos] I1 d I2 [E]` and q, put together by hand."""
    assert backbone.bos_id is not None
    encode = backbone.tokenizer.encode
    document = encode(documents[example.positive]).tolist()[: DATA.max_document_length - 2]
    before = [*encode(module.INTRODUCTION).tolist(), *document, *encode(module.REQUEST).tolist()]
    return [backbone.bos_id, *before, backbone.eos_id], encode(example.query).tolist()[: DATA.max_query_length]


def loss_by_cutting_the_cache(backbone: Backbone, before: list[int], query: list[int]) -> torch.Tensor:
    """Without any mask: all keys and values but those of [E] are thrown away before the query is read."""
    cache = DynamicCache()
    states = [backbone.decoder(input_ids=torch.tensor([before]), past_key_values=cache, use_cache=True)[0][:, -1:]]
    if len(query) > 1:
        kept = DynamicCache()
        layers: Any = cache.layers
        for index, layer in enumerate(layers):
            kept.update(layer.keys[:, :, -1:], layer.values[:, :, -1:], index)
        positions = torch.arange(len(before), len(before) + len(query) - 1)[None]
        states.append(
            backbone.decoder(
                input_ids=torch.tensor([query[:-1]]), position_ids=positions, past_key_values=kept, use_cache=True
            )[0]
        )
    scores = (torch.cat(states, dim=1)[0] @ backbone.head.T).log_softmax(dim=1)
    return -scores[torch.arange(len(query)), torch.tensor(query)].mean()


def test_the_attention_block_by_hand() -> None:
    seen = attention_block(torch.tensor([2, 0]), 5).int().tolist()
    assert seen[0] == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    assert seen[1] == [[1] * (row + 1) + [0] * (4 - row) for row in range(5)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 11), min_size=1, max_size=4), st.integers(1, 12))
def test_the_attention_block_is_the_papers_matrix(ends: list[int], length: int) -> None:
    found = attention_block(torch.tensor(ends), length)
    for row, end in enumerate(ends):
        for i in range(length):
            for j in range(length):
                assert found[row, i, j] == (j <= i <= end or end <= j <= i)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma"])
def test_loss_and_gradients_are_those_of_a_query_that_has_only_the_end_token(
    kind: str, batch: Batch, tmp_path: Path
) -> None:
    backbone = trainable(kind, tmp_path)
    logged = objective(backbone, corruption=0.0).backward(batch, CONTEXT)
    found = gradients(backbone)
    documents = dict(batch.set.documents)
    losses = [
        loss_by_cutting_the_cache(backbone, *texts_of(backbone, one, documents)).squeeze() for one in batch.examples
    ]
    mean = torch.stack(losses).mean()
    mean.backward()
    assert logged["loss"] == pytest.approx(mean.item(), rel=1e-5)
    for name, gradient in gradients(backbone).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)


def test_windows_hold_in_sliding_layers(any_backbone: Backbone, batch: Batch) -> None:
    """One pair at a time under a mask that is written down position by position."""
    logged = objective(any_backbone, corruption=0.0).backward(batch, CONTEXT)
    gradients(any_backbone)
    losses = []
    for example in batch.examples:
        before, query = texts_of(any_backbone, example, dict(batch.set.documents))
        end, length = len(before) - 1, len(before) + len(query) - 1
        masks = {}
        for kind, window in {"full_attention": length, "sliding_attention": 8}.items():
            allowed = [
                [(j <= i <= end or end <= j <= i) and i - j < window for j in range(length)] for i in range(length)
            ]
            masks[kind] = torch.zeros(1, 1, length, length).masked_fill(~torch.tensor(allowed), -1e30)
        several = len(layer_kinds(any_backbone)) > 1
        states = any_backbone.decoder(
            input_ids=torch.tensor([[*before, *query[:-1]]]),
            attention_mask=masks if several else masks["full_attention"],
            use_cache=False,
        )[0]
        scores = (states[0, end:] @ any_backbone.head.T).log_softmax(dim=1)
        losses.append(-scores[torch.arange(len(query)), torch.tensor(query)].mean().item())
    assert logged["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("cut", [False, True])
def test_the_document_reaches_the_query_through_the_end_token_alone(any_backbone: Backbone, cut: bool) -> None:
    ids, end = torch.arange(40, 60)[None], 14
    embedded = any_backbone.model.get_input_embeddings()(ids).detach().requires_grad_()
    visible = attention_block(torch.tensor([end]), 20)
    if cut:
        visible[:, end + 1 :, end] = False
    positions = torch.arange(20)[None]
    masks = attention_masks(any_backbone, visible, positions)
    states = any_backbone.decoder(
        inputs_embeds=embedded, attention_mask=masks, position_ids=positions, use_cache=False
    )[0]
    (states[0, end + 1 :] ** 2).sum().backward()
    assert embedded.grad is not None
    reached = embedded.grad[0, :end].abs().sum(dim=1) > 0
    any_backbone.model.zero_grad()
    if cut:
        assert not reached.any()
    else:
        assert reached.any()


def test_documents_matter(backbone: Backbone, batch: Batch) -> None:
    other = replace(batch, set=replace(batch.set, documents=dict.fromkeys(batch.set.documents, "quite another text")))
    losses = [objective(backbone).backward(one, CONTEXT)["loss"] for one in (batch, other)]
    gradients(backbone)
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.parametrize("world", [2, 4, 8])
def test_the_processes_gradients_add_up(backbone: Backbone, batch: Batch, world: int) -> None:
    whole = objective(backbone).backward(batch, CONTEXT)
    expected = gradients(backbone)
    shares = [objective(backbone).backward(batch, replace(CONTEXT, rank=rank, world=world)) for rank in range(world)]
    found = gradients(backbone)
    assert sum(share["loss"] for share in shares) == pytest.approx(whole["loss"], rel=1e-5)
    assert sum(share["tokens"] for share in shares) == whole["tokens"]
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)


def test_every_process_logs_the_whole_batch(backbone: Backbone, batch: Batch) -> None:
    whole = objective(backbone).backward(batch, CONTEXT)
    rows: list[torch.Tensor] = []
    for rank in range(2):
        context = replace(CONTEXT, rank=rank, world=2, gather=lambda row: rows.append(row) or row)  # type: ignore[func-returns-value]
        objective(backbone).backward(batch, context)
    joined = replace(CONTEXT, rank=0, world=2, gather=lambda row: torch.cat(rows))
    logged = objective(backbone).backward(batch, joined)
    gradients(backbone)
    assert logged == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("chunk_tokens", [8, 150])
def test_chunks_change_nothing(
    backbone: Backbone, batch: Batch, chunk_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = objective(backbone).backward(batch, CONTEXT)
    expected = gradients(backbone)
    monkeypatch.setattr(module, "SLICE_ELEMENTS", 3 * backbone.embedded)  # logits of three positions at a time
    cut = objective(backbone, chunk_tokens=chunk_tokens).backward(batch, CONTEXT)
    found = gradients(backbone)
    assert cut == pytest.approx(whole, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)


def test_a_step_can_be_run_again(backbone: Backbone, batch: Batch) -> None:
    losses = [
        objective(backbone).backward(batch, context)["loss"]
        for context in (CONTEXT, CONTEXT, replace(CONTEXT, step=4), replace(CONTEXT, seed=12))
    ]
    gradients(backbone)
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3


def test_equal_pairs_are_masked_differently(backbone: Backbone, batch: Batch) -> None:
    twice = replace(batch, examples=[batch.examples[0]] * 2, candidates=[batch.candidates[0]] * 2)
    losses = [objective(backbone).backward(twice, replace(CONTEXT, rank=rank, world=2))["loss"] for rank in range(2)]
    gradients(backbone)
    assert losses[0] != losses[1]


def test_the_share_of_masked_tokens() -> None:
    ids = np.arange(100, 50_100, dtype=np.int32)
    found = corrupt(ids, 0.6, 7, np.random.default_rng(1))
    masked = found == 7
    assert 0.59 < masked.mean() < 0.61
    assert (found[~masked] == ids[~masked]).all()
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, corrupt(ids, 0.6, 7, np.random.default_rng(1)))
    np.testing.assert_array_equal(ids, corrupt(ids, 0.0, 7, np.random.default_rng(1)))
    assert len(corrupt(ids[:0], 0.6, 7, np.random.default_rng(1))) == 0


def test_a_negative_seed_is_a_seed(backbone: Backbone, batch: Batch) -> None:
    assert np.isfinite(objective(backbone).backward(batch, replace(CONTEXT, seed=-1))["loss"])
    gradients(backbone)


def test_autocast_gives_about_the_same(backbone: Backbone, batch: Batch) -> None:
    plain = objective(backbone).backward(batch, CONTEXT)["loss"]
    with torch.autocast("cpu", torch.bfloat16):
        rough = objective(backbone).backward(batch, CONTEXT)["loss"]
    gradients(backbone)
    assert rough == pytest.approx(plain, rel=0.05)
    assert rough != plain


def test_it_learns_to_write_the_queries(batch: Batch, tmp_path: Path) -> None:
    backbone = trainable("llama", tmp_path)
    optimizer = torch.optim.Adam(backbone.decoder.parameters(), lr=3e-3)
    losses = []
    for step in range(12):
        losses.append(objective(backbone).backward(batch, replace(CONTEXT, step=step))["loss"])
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.6 * losses[0]


def test_texts_longer_than_the_model_reads_are_refused(backbone: Backbone) -> None:
    stage = QueryLikelihoodStage(kind="query_likelihood", steps=1)
    with pytest.raises(RecipeError, match=r"data\.max_document_length is 500 .* reads 512\. Lower"):
        QueryLikelihood(backbone, stage, DATA.model_copy(update={"max_document_length": 500}))


def test_a_query_without_tokens_is_named(backbone: Backbone, batch: Batch) -> None:
    empty = replace(batch, examples=[replace(batch.examples[0], query="")])
    with pytest.raises(CorpusError, match='set: query "q0" has no tokens'):
        objective(backbone).backward(empty, CONTEXT)
