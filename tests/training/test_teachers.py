import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lightretriever.artifacts.training.teacher_vectors as vectors
import numpy as np
import pytest
import torch
from lightretriever.artifacts.errors import ModelError, ResumeError
from lightretriever.artifacts.files.shards import EncodedShard
from lightretriever.artifacts.pipeline.language_model import LanguageModel
from lightretriever.artifacts.pipeline.model import load_backbone
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from lightretriever.artifacts.sparse.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.tokens.idf import save_idf
from lightretriever.artifacts.training.recipe import (
    ContrastiveStage,
    DataRecipe,
    DistilRecipe,
    NegativesRecipe,
    SetRecipe,
    TeacherRecipe,
    TrainRecipe,
)
from lightretriever.artifacts.training.teachers import pick, teacher_scores
from lightretriever.artifacts.training.types import Batch, Example, TrainingSet
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoModelForCausalLM, BertConfig, BertModel, PreTrainedTokenizerFast

from tests.support.models import save_model
from tests.support.tiny import tiny_documents, train_tokenizer

BM25 = TeacherRecipe(kind="bm25")


@pytest.fixture(scope="module")
def biencoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random sentence-transformers model."""
    folder = tmp_path_factory.mktemp("teacher")
    inner = folder / "inner"
    inner.mkdir()
    train_tokenizer(inner / "tokenizer.json", [document.full_text for document in tiny_documents(40)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(inner / "tokenizer.json"), pad_token="<|endoftext|>", model_max_length=64
    )
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(inner)
    tokenizer.save_pretrained(inner)
    body = Transformer(str(inner))
    SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension())], device="cpu").save(
        str(folder / "model")
    )
    return folder / "model"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llm") / "llama", "llama")


def a_set(name: str = "first", *, queries: int = 12, seed: int = 1) -> TrainingSet:
    """Examples with no to four negatives; a query and many documents come several times."""
    random = np.random.default_rng(seed)
    documents = {document.id: document.full_text for document in tiny_documents(40)}
    examples = []
    for row in range(queries):
        names = random.permutation(list(documents))[: 1 + row % 5].tolist()
        words = documents[names[0]].split()[:3]
        examples.append(Example(row, f"q{row}", " ".join(words) or "nothing", names[0], tuple(names[1:])))
    examples.append(replace(examples[3], row=queries, positive="music", negatives=("editor",)))
    return TrainingSet(name, "find it", 1.0, examples, documents)


def a_recipe(work: Path) -> TrainRecipe:
    return TrainRecipe(
        name="test",
        model=ModelRecipe(path="student", device="cpu"),
        data=DataRecipe(
            sets=[SetRecipe(path=Path("first"), instruction="find it")],
            negatives=[NegativesRecipe()],
            max_document_length=64,
        ),
        stages=[ContrastiveStage(kind="contrastive", steps=1)],
        work=work,
        output=work / "out",
    )


def a_stage(*teachers: TeacherRecipe) -> ContrastiveStage:
    return ContrastiveStage(kind="contrastive", steps=1, distil=DistilRecipe(teachers=list(teachers)))


def pairs_of(one: TrainingSet) -> list[tuple[int, int, str, str]]:
    """Row, column, query text and document id of every pair."""
    return [
        (example.row, column, example.query, name)
        for example in one.examples
        for column, name in enumerate((example.positive, *example.negatives))
    ]


def check_all(scores: np.ndarray, one: TrainingSet, expected: Callable[[str, str], float], atol: float) -> None:
    """Every pair has the expected score, and every other place is NaN."""
    assert scores.dtype == np.float32
    assert scores.shape == (len(one.examples), 5)
    wanted = np.full(scores.shape, np.nan, dtype=np.float32)
    for row, column, query, name in pairs_of(one):
        wanted[row, column] = expected(query, name)
    np.testing.assert_allclose(scores, wanted, atol=atol, rtol=0)


def test_biencoder_scores_are_its_cosines(biencoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_SHARD", 7)  # several shards
    one = a_set()
    found = teacher_scores(a_recipe(tmp_path), [one], a_stage(TeacherRecipe(kind="biencoder", path=str(biencoder))))
    model = SentenceTransformer(str(biencoder), device="cpu")

    def cosine(query: str, name: str) -> float:
        pair = model.encode([query, one.documents[name]], convert_to_tensor=True)
        return float(torch.nn.functional.cosine_similarity(pair[0], pair[1], dim=0))

    check_all(found["first"][0], one, cosine, atol=1e-3)
    assert np.nanstd(found["first"][0]) > 0.01


def test_bm25_scores_are_those_of_a_search(tmp_path: Path) -> None:
    one = a_set()
    found = teacher_scores(a_recipe(tmp_path), [one], a_stage(BM25))["first"]
    build_word_index(tmp_path / "index", one.documents, one.documents.values())
    with WordIndex.open(tmp_path / "index") as words:
        check_all(found[0], one, lambda query, name: dict(words.search(query, 100)).get(name, 0.0), atol=0)
    assert (found[0][:, 0] > 0).any()


def dense_and_sparse(folder: Path, one: TrainingSet, tmp_path: Path, adapter: Path | None = None) -> np.ndarray:
    """(2, n, 5): cosines and inner products from the plain forward pass of each text, min-max normalised per row."""
    backbone = load_backbone(
        str(folder), work=tmp_path / "plain", device="cpu", adapter=None if adapter is None else str(adapter)
    )
    idf = np.load(adapter / "idf.npy") if adapter is not None else np.ones(backbone.vocab_size, dtype=np.float32)
    scores = np.full((2, len(one.examples), 5), np.nan)
    for row, column, query, name in pairs_of(one):
        ids = backbone.frame(backbone.tokenizer.encode(one.documents[name]).tolist()[:62])
        with torch.inference_mode():
            states = backbone.decoder(input_ids=torch.tensor([ids]))[0][0]
            weights = torch.log1p(torch.relu((states @ backbone.head.T).amax(dim=0))).numpy()
        asked_for = LanguageModel.of(backbone).encode_queries([query], one.instruction)
        dense, [(terms, asked)] = asked_for.dense, asked_for.sparse or []
        end = torch.nn.functional.normalize(states[-1], dim=0).numpy()
        weighted = np.zeros(len(weights))
        weighted[terms] = asked * idf[terms]
        scores[:, row, column] = end @ dense[0], weighted @ weights
    low, high = np.nanmin(scores, axis=2, keepdims=True), np.nanmax(scores, axis=2, keepdims=True)
    return np.where(np.isnan(scores), np.nan, (scores - low) / np.where(high > low, high - low, 1))


@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_model_of_ours_scores_dense_and_sparse(
    llm: Path, tmp_path: Path, with_adapter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "_TERMS", 10_000)  # nearly equal weights are cut here and there otherwise
    one, adapter = a_set(), None
    if with_adapter:
        adapter = tmp_path / "adapter"
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(llm),
            LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM"),
        )
        model.save_pretrained(str(adapter))
        backbone = load_backbone(str(llm), work=tmp_path / "plain", device="cpu")
        save_idf(adapter / "idf.npy", np.random.default_rng(2).uniform(0.1, 9, backbone.vocab_size).astype(np.float32))
    teacher = TeacherRecipe(kind="lightretriever", path=str(llm), adapter=None if adapter is None else str(adapter))
    found = teacher_scores(a_recipe(tmp_path / "work"), [one], a_stage(teacher))["first"][0]
    expected = dense_and_sparse(llm, one, tmp_path, adapter).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert np.nanmin(found) == 0


def test_the_largest_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_TERMS", 3)
    terms, impacts = vectors._largest(np.array([2, 5, 7, 9], np.int32), np.array([0.5, 1.234, 900, 0.6], np.float32))
    assert terms.tolist() == [5, 7, 9]
    assert impacts.tolist() == [123, 65_535, 60]


def test_teachers_and_sets_stay_apart(biencoder: Path, tmp_path: Path) -> None:
    sets = [a_set(), a_set("second", queries=7, seed=5)]
    teachers = [BM25, TeacherRecipe(kind="biencoder", path=str(biencoder))]
    both = teacher_scores(a_recipe(tmp_path / "a"), sets, a_stage(*teachers))
    assert {name: scores.shape for name, scores in both.items()} == {"first": (2, 13, 5), "second": (2, 8, 5)}
    for number, teacher in enumerate(teachers):
        alone = teacher_scores(a_recipe(tmp_path / f"b{number}"), sets, a_stage(teacher))
        for name, scores in alone.items():
            np.testing.assert_array_equal(scores[0], both[name][number])


def test_a_second_call_reads(biencoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, recipe = a_set(), a_recipe(tmp_path)
    teachers = [BM25, TeacherRecipe(kind="biencoder", path=str(biencoder))]
    first = teacher_scores(recipe, [one], a_stage(*teachers))["first"]
    files = sorted(path for path in (tmp_path / "teachers").rglob("*") if path.is_file())
    assert sorted(path.name for path in files) == ["plan.json"] * 2 + ["scores.npy"] * 2
    monkeypatch.setattr("lightretriever.artifacts.training.teachers.load_teacher", None)  # can't be called
    monkeypatch.setattr("lightretriever.artifacts.training.teachers.word_index", None)
    heavier = [teacher.model_copy(update={"weight": 5.0}) for teacher in reversed(teachers)]
    second = teacher_scores(recipe, [one], a_stage(*heavier))["first"]
    np.testing.assert_array_equal(second[::-1], first)


def test_a_killed_call_goes_on(biencoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_SHARD", 7)
    one, recipe = a_set(), a_recipe(tmp_path)
    stage = a_stage(TeacherRecipe(kind="biencoder", path=str(biencoder)))
    whole = teacher_scores(a_recipe(tmp_path / "whole"), [one], stage)["first"]
    load, calls = vectors.load_teacher, []

    def killed(given: TeacherRecipe, of: TrainRecipe) -> vectors.VectorTeacher:
        teacher = load(given, of)

        def documents(texts: list[str]) -> EncodedShard:
            calls.append(texts)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return teacher.documents(texts)

        return replace(teacher, documents=documents)

    monkeypatch.setattr("lightretriever.artifacts.training.teachers.load_teacher", killed)
    with pytest.raises(KeyboardInterrupt):
        teacher_scores(recipe, [one], stage)
    shards = list((tmp_path / "teachers" / "first").glob("*/documents/shard-*.npz"))
    assert len(shards) == 2
    found = teacher_scores(recipe, [one], stage)["first"]
    np.testing.assert_array_equal(found, whole)
    distinct = {name for _, _, _, name in pairs_of(one)}
    assert len(calls) == -(-len(distinct) // 7) + 1  # the killed shard twice, each other one once
    assert sum(len(texts) for texts in calls) == len(distinct) + len(calls[2])


def test_other_weights_are_refused(biencoder: Path, tmp_path: Path) -> None:
    one, recipe = a_set(), a_recipe(tmp_path / "work")
    teacher = tmp_path / "teacher"
    model = SentenceTransformer(str(biencoder), device="cpu")
    model.save(str(teacher))
    stage = a_stage(TeacherRecipe(kind="biencoder", path=str(teacher)))
    teacher_scores(recipe, [one], stage)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    model.save(str(teacher))
    with pytest.raises(ResumeError, match=r"begun with other inputs \(files: "):
        teacher_scores(recipe, [one], stage)


def test_other_prompts_and_lengths_are_refused(biencoder: Path, tmp_path: Path) -> None:
    one, recipe = a_set(), a_recipe(tmp_path / "work")
    teacher = tmp_path / "teacher"
    model = SentenceTransformer(str(biencoder), device="cpu")
    model.save(str(teacher))
    stage = a_stage(TeacherRecipe(kind="biencoder", path=str(teacher)))
    teacher_scores(recipe, [one], stage)
    settings = teacher / "config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"prompts": {"query": "q: "}}))
    with pytest.raises(ResumeError, match=r"begun with other inputs \(files: "):
        teacher_scores(recipe, [one], stage)


@pytest.mark.parametrize("what", ["examples", "documents"])
def test_other_pairs_are_refused(tmp_path: Path, what: str) -> None:
    one, recipe = a_set(), a_recipe(tmp_path)
    teacher_scores(recipe, [one], a_stage(BM25))
    if what == "examples":
        first = replace(one.examples[0], query="another query")
        other = replace(one, examples=[first, *one.examples[1:]])
    else:
        other = replace(one, documents={**one.documents, "music": "another text"})
    with pytest.raises(ResumeError, match=rf"begun with other inputs \({what}: "):
        teacher_scores(recipe, [other], a_stage(BM25))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    one, recipe = a_set(), a_recipe(tmp_path)
    teacher_scores(recipe, [one], a_stage(BM25))
    (file,) = tmp_path.rglob("scores.npy")
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(ResumeError, match=r"scores\.npy: can't be read"):
        teacher_scores(recipe, [one], a_stage(BM25))


def test_a_teacher_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = TeacherRecipe(kind="biencoder", path=str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="nowhere: there is no such directory"):
        teacher_scores(a_recipe(tmp_path), [a_set()], a_stage(missing))


def test_rows_must_be_places(tmp_path: Path) -> None:
    one = a_set()
    with pytest.raises(ValueError, match=r"first: Example\.row"):
        teacher_scores(a_recipe(tmp_path), [replace(one, examples=one.examples[1:])], a_stage(BM25))


def test_a_stage_without_teachers_has_no_scores(tmp_path: Path) -> None:
    assert teacher_scores(a_recipe(tmp_path), [a_set()], ContrastiveStage(kind="contrastive", steps=1)) == {}
    assert list(tmp_path.iterdir()) == []


def test_scores_follow_the_candidates(tmp_path: Path) -> None:
    one = a_set()
    examples = [one.examples[4], one.examples[2], one.examples[9]]  # four, two and four negatives
    candidates = [
        [examples[0].positive, examples[0].negatives[3], examples[0].negatives[0]],
        [examples[1].positive, "doc-39", examples[1].negatives[1]],
        [examples[2].positive, *examples[2].negatives[:2]],
    ]
    assert "doc-39" not in (examples[1].positive, *examples[1].negatives)
    scores = {"first": np.arange(2 * 13 * 5, dtype=np.float32).reshape(2, 13, 5)}
    batch = pick(scores, Batch(one, examples, candidates))
    assert batch.teachers is not None
    assert batch.teachers.dtype == np.float32
    first = [[20, 24, 21], [10, np.nan, 12], [45, 46, 47]]
    np.testing.assert_array_equal(batch.teachers, [first, np.array(first) + 65])
    assert batch.candidates == candidates
