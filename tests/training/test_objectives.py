"""A contrastive step, where gradient caching and packing change time and memory alone; and query likelihood."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.evaluation.runs import measure
from lightretriever.artifacts.pipeline.language_model import (
    FULL_QUERY_TERMS,
    LanguageModel,
    Reading,
    instruction_prefix,
    log_likelihoods,
)
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import pack
from lightretriever.artifacts.tokens.idf import count_tokens
from lightretriever.artifacts.training.adapter import Adapter
from lightretriever.artifacts.training.dev import DevSet, evaluate_dev
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.losses import cosine_scores, sparse_scores
from lightretriever.artifacts.training.mixture import Batch, Example, StepContext, TrainingSet
from lightretriever.artifacts.training.objectives import (
    Contrastive,
    Likelihood,
    QuerySide,
    corpus_scores,
    corrupted,
    document_outputs,
)
from lightretriever.artifacts.training.recipe import (
    ContrastiveStage,
    DataRecipe,
    FlopsRecipe,
    LikelihoodStage,
    LoraRecipe,
    SetRecipe,
)
from tests.support.models import load, padded_weights, token_states_naive
from tests.support.tiny import tiny_documents
from tests.support.wordings import raises

DATA = DataRecipe(sets=[SetRecipe(path=Path("set"), instruction="find")], max_query_length=12, max_document_length=60)
CONTEXT = StepContext(step=2, steps=9, seed=5, batch=2)
INSTRUCTION = "Given a description, retrieve programs"


@pytest.fixture(scope="module")
def backbone(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    loaded = load(model_folder)
    loaded.decoder.requires_grad_(True)
    return loaded


@pytest.fixture(scope="module")
def batch() -> Batch:
    documents = {document.id: document.full_text for document in tiny_documents(20)}
    documents["twin"] = documents["music"]
    queries = ("terminal music player", "retrieval of documents", "zebra", "a library")
    pairs = zip(queries, ("music", "long", "greek", "doc-12"), strict=True)
    examples = [Example(f"q{row}", query, name) for row, (query, name) in enumerate(pairs)]
    candidates = [[one.positive, list(documents)[13 + row], "twin"] for row, one in enumerate(examples)]
    return Batch(TrainingSet("set", (INSTRUCTION,), 1.0, examples, documents), examples, candidates, [0] * 4)


def stage() -> ContrastiveStage:
    flops = FlopsRecipe(weight=0.01, warmup=6)
    return ContrastiveStage(kind="contrastive", steps=9, matryoshka=[8], flops=flops, full_kl=0.5, negatives=2)


def idf_of(backbone: Backbone, batch: Batch) -> torch.Tensor:
    texts = list(batch.set.documents.values())
    return torch.from_numpy(count_tokens(backbone.tokenizer.encode_batch(texts), backbone.vocab_size).idf())


def step_of(backbone: Backbone, batch: Batch, chunk_tokens: int) -> Contrastive:
    engine = Engine()
    engine.chunk_tokens = chunk_tokens
    return Contrastive(engine, backbone, stage(), DATA, QuerySide(idf_of(backbone, batch)))


def gradients(
    backbone: Backbone, batch: Batch, context: StepContext = CONTEXT, chunk_tokens: int = 100_000
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    backbone.model.zero_grad()
    logged = step_of(backbone, batch, chunk_tokens).backward(batch, context)
    named = backbone.decoder.named_parameters()
    return {name: one.grad.clone() for name, one in named if one.grad is not None}, logged


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        scale = float(tensor.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(other[name], tensor, atol=1e-4 * scale, rtol=1e-3)


def test_packing_fills_rows_and_breaks_no_text() -> None:
    lengths = [5, 30, 7, 64, 12, 100, 1]
    rows = pack(lengths, 64)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    sums = [sum(lengths[index] for index in row) for row in rows]
    assert all(total <= 64 or len(row) == 1 for total, row in zip(sums, rows, strict=True))
    assert len(rows) == 3  # 100 and 64 alone, everything else in one


def test_gradient_caching_equals_the_plain_step(backbone: Backbone, batch: Batch) -> None:
    plain, logged = gradients(backbone, batch)
    cached, again = gradients(backbone, batch, chunk_tokens=40)
    assert_same(plain, cached)
    assert again == pytest.approx(logged, rel=1e-4)


def test_gradient_caching_in_half_precision(model_folder: Path, batch: Batch) -> None:
    """An adapter in float32 on a bfloat16 model under autocast, as on a GPU; all of its gradients must arrive."""
    loaded = load(model_folder, dtype="bfloat16")
    adapter = Adapter(loaded, LoraRecipe(r=4, alpha=8, dropout=0.0), seed=1)
    trained, random = adapter.trained(), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in trained.values():  # half of them begin at 0, which hides the others
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=random))
    found = []
    for chunk_tokens in (100_000, 40):
        adapter.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            step_of(adapter.backbone, batch, chunk_tokens).backward(batch, CONTEXT)
        found.append({name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None})
    assert found[0].keys() == found[1].keys() == trained.keys()
    for name, plain in found[0].items():
        assert torch.nn.functional.cosine_similarity(plain.flatten(), found[1][name].flatten(), dim=0) > 0.98, name


def test_more_dimensions_than_the_model_has_are_refused(backbone: Backbone) -> None:
    with raises(RecipeError, naming="33"):
        Contrastive(Engine(), backbone, stage().model_copy(update={"matryoshka": [8, 33]}), DATA, QuerySide())


def test_caching_repeats_the_dropout_of_the_first_pass(backbone: Backbone, batch: Batch) -> None:
    """With dropout the two passes of a chunk must draw the same masks, or the gradient belongs to another loss."""
    attention: Any = backbone.decoder.get_submodule("layers.0.self_attn")
    backbone.model.train()
    attention.attention_dropout = 0.5
    try:
        first, logged = gradients(backbone, batch, chunk_tokens=40)
        second, again = gradients(backbone, batch, chunk_tokens=40)
        other, _ = gradients(backbone, batch, replace(CONTEXT, batch=3), chunk_tokens=40)
    finally:
        attention.attention_dropout = 0.0
        backbone.model.eval()
    assert logged == again
    assert_same(first, second)
    assert any(not torch.allclose(first[name], other[name], rtol=1e-2) for name in first)


def cross_entropy(logits: torch.Tensor, positives: torch.Tensor, hidden: torch.Tensor) -> float:
    """The mean over queries of -ln softmax at the positive, over all documents that are not hidden."""
    weights = np.where(hidden.numpy(), 0.0, np.exp(logits.double().numpy()))
    return float(-np.log(weights[np.arange(len(weights)), positives.numpy()] / weights.sum(axis=1)).mean())


def test_the_losses_are_the_formulas_on_naive_representations(backbone: Backbone, batch: Batch) -> None:
    """Against token-by-token states, and one document and one whole query at a time, with the tokens that the service
    looks up; the instructions are in another order than the queries."""
    instructions, numbers = (INSTRUCTION, "Find it"), [1, 0, 1, 0]
    several = replace(batch, set=replace(batch.set, instructions=instructions), instructions=numbers)
    _, logged = gradients(backbone, several)
    names, idf = list(dict.fromkeys(name for row in batch.candidates for name in row)), idf_of(backbone, batch)
    queries = [torch.tensor(backbone.tokenizer.query_ids(one.query)[:12]) for one in batch.examples]
    made: dict[str, list[torch.Tensor]] = {"documents": [], "sparse": [], "dense": [], "full_dense": []}
    with torch.inference_mode():
        for name in names:
            ids = backbone.frame(backbone.tokenizer.encode(batch.set.documents[name])[:58].tolist())
            hidden = backbone.decoder(input_ids=torch.tensor([ids]), use_cache=False)[0]
            made["documents"].append(hidden[0, -1])
            made["sparse"].append(padded_weights(hidden[:, 1:-1], backbone.head, torch.tensor([len(ids) - 2]))[0])
        for number, example, query in zip(numbers, batch.examples, queries, strict=True):
            prefix = instruction_prefix(backbone, instructions[number])
            made["dense"].append(token_states_naive(backbone, prefix, query).mean(dim=0))
            ids = [*prefix, *backbone.tokenizer.encode(example.query)[:12].tolist(), backbone.eos_id]
            made["full_dense"].append(backbone.decoder(input_ids=torch.tensor([ids]), use_cache=False)[0][0, -1])
    rows = {name: torch.stack(part) for name, part in made.items()}
    positives = torch.tensor([names.index(row[0]) for row in batch.candidates])
    hidden_columns = torch.zeros(len(queries), len(names), dtype=torch.bool)
    hidden_columns[0, names.index("twin")] = True  # the text of query 0's positive under another id
    for key in ("dense", "full_dense"):
        cosines = [cosine_scores(rows[key][:, :size], rows["documents"][:, :size]) for size in (8, 32)]
        expected = sum(cross_entropy(scores / 0.02, positives, hidden_columns) for scores in cosines)
        assert logged[key] == pytest.approx(expected, rel=1e-3), key
    lexical = sparse_scores(queries, rows["sparse"], idf)
    assert logged["sparse"] == pytest.approx(cross_entropy(lexical, positives, hidden_columns), rel=1e-3)
    flops = 0.01 * (3 / 6) ** 2 * float((rows["sparse"].mean(dim=0) ** 2).sum())
    assert logged["flops"] == pytest.approx(flops, rel=1e-3)
    parts = ("dense", "full_dense", "sparse", "flops", "kl_dense", "kl_sparse")
    assert logged["loss"] == pytest.approx(sum(logged[part] for part in parts))


def test_development_scores_are_of_the_tokens_that_the_service_looks_up(backbone: Backbone) -> None:
    queries = {"q0": "music player", "q1": "zebra"}
    documents = [Document(one.id, one.title, one.text, one.raw) for one in tiny_documents(20)]
    qrels = {query: {one.id: grade for grade, one in enumerate(documents)} for query in queries}  # tells all orders
    ids = [torch.tensor(backbone.tokenizer.query_ids(query)) for query in queries.values()]
    prefix, dev = instruction_prefix(backbone, INSTRUCTION), DevSet(INSTRUCTION, queries, qrels, documents)
    with torch.inference_mode():
        found = evaluate_dev(backbone, dev, 60, QuerySide())
        read = document_outputs(backbone, backbone.document_ids([one.full_text for one in documents], 60))
        means = torch.stack([token_states_naive(backbone, prefix, query).mean(dim=0) for query in ids])
    strongest = read["sparse"].where(read["sparse"] >= read["sparse"].topk(128, dim=1).values[:, -1:], 0)
    legs = {"dense": cosine_scores(means, read["dense"]), "sparse": sparse_scores(ids, strongest, None)}
    bounds = {leg: (scores.amin(1, True), scores.amax(1, True)) for leg, scores in legs.items()}
    shares = {leg: (scores - bounds[leg][0]) / (bounds[leg][1] - bounds[leg][0]) for leg, scores in legs.items()}
    for system, scores in (legs | {"hybrid": 0.7 * shares["dense"] + 0.3 * shares["sparse"]}).items():
        orders = scores.argsort(dim=1, descending=True, stable=True).tolist()
        runs = {
            query: [(documents[place].id, -float(rank)) for rank, place in enumerate(order)]
            for query, order in zip(queries, orders, strict=True)
        }
        assert found[system] == pytest.approx(measure(qrels, runs)["nDCG@10"]), system


def test_scores_are_float32_whatever_the_model_computes_in(backbone: Backbone) -> None:
    texts = [one.full_text for one in tiny_documents(70)]
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        parts = list(corpus_scores(backbone, INSTRUCTION, ["music player", "zebra"], texts, 60, QuerySide()))
    assert [part["dense"].shape for part in parts] == [(2, 64), (2, 6)]
    for scores in (part[leg] for part in parts for leg in ("dense", "sparse")):
        assert scores.dtype == torch.float32
        assert not torch.equal(scores, scores.bfloat16().float())


def test_full_queries_are_the_model_read_whole(backbone: Backbone, batch: Batch) -> None:
    """One query at a time, by the plain forward pass."""
    queries = [example.query for example in batch.examples]
    made = LanguageModel.of(backbone).encode_queries(queries, INSTRUCTION)
    dense, sparse = made.dense, made.sparse or []
    prefix = instruction_prefix(backbone, INSTRUCTION)
    for row, query in enumerate(queries):
        ids = [*prefix, *backbone.tokenizer.encode(query).tolist(), backbone.eos_id]
        with torch.inference_mode():
            hidden = backbone.decoder(input_ids=torch.tensor([ids]), use_cache=False)[0]
            expected = torch.nn.functional.normalize(hidden[0, -1], dim=0).numpy()
            tail = hidden[:, len(prefix) : -1]
            weights = padded_weights(tail, backbone.head, torch.tensor([tail.shape[1]]))[0].numpy()
        np.testing.assert_allclose(dense[row], expected, atol=1e-5)
        terms, values = sparse[row]
        assert len(terms) == min(FULL_QUERY_TERMS, np.count_nonzero(weights))
        assert values.min() >= np.sort(weights)[-len(terms)] - 1e-5  # the strongest ones
        np.testing.assert_allclose(values, weights[terms], atol=1e-5)


def test_a_query_without_tokens_is_named(backbone: Backbone, batch: Batch) -> None:
    empty = replace(batch, examples=[replace(batch.examples[0], query="", query_id="blank"), *batch.examples[1:]])
    with raises(CorpusError, naming="blank"):
        gradients(backbone, empty)


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
    logged = Likelihood(Engine(), backbone, stage, data).backward(batch, context)
    assert logged["query_likelihood"] == pytest.approx(expected, rel=1e-4)
    assert logged["loss_of_token"] == pytest.approx(expected * 3 / sum(map(len, queries)), rel=1e-4)


def test_documents_leave_room_for_the_prompts(backbone: Backbone) -> None:
    reading, text = Reading("Passage: ", " Summary: "), "terminal music player with many words of a long text " * 5
    cut, short = reading.document_ids(backbone, [text, "music"], 20)
    assert len(reading.frame(backbone, cut)) == 20
    assert cut == backbone.tokenizer.encode(text).tolist()[: len(cut)]
    assert short == backbone.tokenizer.encode("music").tolist()
