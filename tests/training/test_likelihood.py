"""Query likelihood against the model read one pair at a time, with a mask written down here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lightretriever.artifacts.pipeline.language_model import Reading, log_likelihoods
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.mixture import Batch, Example, StepContext, TrainingSet
from lightretriever.artifacts.training.objectives import Likelihood, corrupted
from lightretriever.artifacts.training.recipe import DataRecipe, LikelihoodStage, SetRecipe

DOCUMENTS, QUERIES = [[40, 41, 42, 43, 44], [50, 51], [60]], [[70, 71, 72], [73], [74, 75]]


@pytest.mark.parametrize("block", [True, False])
def test_likelihoods_are_equation_8(model_folder: Path, backbone: Backbone, block: bool) -> None:
    """-Σ_i ln P(q_i | I1, d, I2, [E], q_<i), where q sees [E] and itself alone; by the whole model's own head."""
    reading = Reading("Passage: ", " Summary: ", block)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager")
    expected = []
    for document, query in zip(DOCUMENTS, QUERIES, strict=True):
        before, after = (backbone.tokenizer.encode(text).tolist() for text in (reading.before, reading.after))
        framed = [*backbone.prefix(), *before, *document, *after, backbone.eos_id]
        ids, end = [*framed, *query], len(framed) - 1
        mask = np.full((len(ids), len(ids)), np.finfo(np.float32).min, dtype=np.float32)
        for row in range(len(ids)):
            first = end if block and row > end else 0
            mask[row, first : row + 1] = 0
        with torch.inference_mode():
            out = model(input_ids=torch.tensor([ids]), attention_mask=torch.from_numpy(mask)[None, None])
        logits = out.logits[0, :, : backbone.embedded].double().numpy()
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        expected.append(sum(logs[end + place, token] for place, token in enumerate(query)))
    for row_tokens in (8, 256):  # by themselves, and packed
        with torch.inference_mode():
            found = log_likelihoods(backbone, reading, DOCUMENTS, QUERIES, row_tokens)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_tokens_are_masked_with_their_probability() -> None:
    ids = list(range(100, 20_100))
    hidden = corrupted(ids, 0.6, 7, np.random.default_rng(1))
    assert len(hidden) == len(ids)
    assert {token for token, own in zip(hidden, ids, strict=True) if token != own} == {7}
    assert np.mean(np.array(hidden) == 7) == pytest.approx(0.6, abs=0.02)
    assert corrupted(ids, 0.0, 7, np.random.default_rng(1)) == ids


def test_a_step_s_loss_is_the_mean_over_queries_that_follow_masked_documents(backbone: Backbone) -> None:
    documents = {name: f"terminal {name} player with many words" for name in ("music", "video", "image")}
    examples = [Example(f"q{row}", f"play {name}", name) for row, name in enumerate(documents)]
    one = TrainingSet("set", ("",), 1.0, examples, documents)
    batch = Batch(one, examples, [[name] for name in documents], [0] * 3)
    data = DataRecipe(sets=[SetRecipe(path=Path("set"), instruction="")], max_query_length=2, max_document_length=30)
    stage = LikelihoodStage(kind="query_likelihood", steps=1, before="read ", after=" ask", corruption=0.5, block=False)
    context = StepContext(step=0, steps=1, seed=5, batch=3)
    (mark,) = backbone.tokenizer.encode("_").tolist()
    random, reading = np.random.default_rng((5, 3)), Reading("read ", " ask", block=False)
    masked = []
    for ids in reading.document_ids(backbone, list(documents.values()), 30):
        hidden = random.random(len(ids)) < 0.5
        masked.append([mark if one else token for token, one in zip(ids, hidden, strict=True)])
    assert 0 < sum(ids.count(mark) for ids in masked) < sum(map(len, masked))
    queries = [backbone.tokenizer.encode(example.query)[:2].tolist() for example in examples]
    with torch.inference_mode():
        expected = -float(log_likelihoods(backbone, reading, masked, queries, 256).mean())
    backbone.decoder.requires_grad_(True)
    logged = Likelihood(Engine(), backbone, stage, data).backward(batch, context)
    assert logged["query_likelihood"] == pytest.approx(expected, rel=1e-4)
    assert logged["loss_of_token"] == pytest.approx(expected * 3 / sum(map(len, queries)), rel=1e-4)


def test_documents_leave_room_for_the_prompts(backbone: Backbone) -> None:
    reading, text = Reading("Passage: ", " Summary: "), "terminal music player with many words of a long text " * 5
    cut, short = reading.document_ids(backbone, [text, "music"], 20)
    assert len(reading.frame(backbone, cut)) == 20
    assert cut == backbone.tokenizer.encode(text).tolist()[: len(cut)]
    assert short == backbone.tokenizer.encode("music").tolist()
