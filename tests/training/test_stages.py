"""Every stage of the papers from end to end, in one go and in slices; teachers, mining, memory, and whole models."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BertConfig, BertForSequenceClassification, BertTokenizerFast

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import CorpusError, ModelError, RecipeError, ResumeError
from lightretriever.artifacts.pipeline.language_model import Reading
from lightretriever.artifacts.pipeline.model import adapter_settings
from lightretriever.artifacts.training import loop, objectives
from lightretriever.artifacts.training.adapter import load_for_training
from lightretriever.artifacts.training.data import read_examples
from lightretriever.artifacts.training.dev import ranked
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.mixture import Batch, Example, TrainingSet
from lightretriever.artifacts.training.objectives import QuerySide, corpus_scores
from lightretriever.artifacts.training.recipe import ContrastiveStage, DataRecipe, DistillationRecipe, TrainRecipe
from lightretriever.artifacts.training.run import Run
from lightretriever.artifacts.training.teachers import Teachers
from lightretriever.service.commands.evaluation import open_searcher
from tests.pipeline.test_model import write_gguf
from tests.support.commands import run
from tests.support.models import load
from tests.support.recipes import write_recipe
from tests.support.wordings import raises
from tests.training.test_train import TORCHRUN, launched, log_of, losses, recipe_of, weights

train = loop.train
SMALL = {"batch_size": 8, "learning_rate": 0.005}


def data(toy: Path) -> dict[str, Any]:
    one = {"path": str(toy / "pairs"), "instruction": ["find", "find some"]}
    return {"sets": [one], "max_document_length": 24, "negatives": {"depth": 40, "count": 3, "margin": 2.0}}


@pytest.mark.slow
def test_all_stages_run_and_slices_of_time_end_with_the_very_same(toy: Path, tmp_path: Path) -> None:
    """Query likelihood, then contrastive training, then distillation on negatives that the model mined itself, from a
    teacher that likes documents by their numbers."""
    scores = "".join(f"q{query}\td{number}\t{number}\n" for query in range(400) for number in range(400))
    (tmp_path / "pairs.tsv").write_text(scores)
    mined = {"mine": "dense", "negatives": 2, "contrastive": 0.0, "schedule": "cosine", "minimum_rate": 0.1}
    teacher = {"scores": str(tmp_path / "{set}.tsv")}
    distillation = {"teachers": [teacher], "scale": 10.0, "legs": ["dense", "sparse"]}
    stages = [
        {"kind": "query_likelihood", "steps": 3, "before": "instruct: find ", "after": " query:", **SMALL},
        {"kind": "contrastive", "steps": 2, "negatives": 1, **SMALL},
        {"kind": "contrastive", "steps": 2, **mined, "distillation": distillation, **SMALL},
    ]
    whole, slices = (tmp_path / name for name in ("whole", "slices"))
    recipes = [
        TrainRecipe.model_validate(recipe_of(toy, one, data=data(toy), stages=stages)) for one in (whole, slices)
    ]
    assert train(recipes[0])
    while not train(recipes[1], minutes=0):
        pass
    assert losses(slices) == losses(whole)
    torch.testing.assert_close(weights(slices), weights(whole), rtol=0, atol=0)
    parts = [set(entry) for entry in log_of(whole)]
    assert "query_likelihood" in parts[0]
    assert {"teachers_dense", "teachers_sparse"} <= parts[-1]
    assert Reading.of(adapter_settings(str(whole / "adapter"))) == Reading("instruct: find ", " query:")


@pytest.mark.parametrize("leg", ["dense", "sparse"])
def test_mining_ranks_all_documents_by_the_leg_that_a_stage_names(toy: Path, leg: Any) -> None:
    """Against each document scored by itself; more than one part of them is read."""
    backbone, one = load(toy / "model"), one_set(toy)
    assert len(one.documents) > 128
    settings = DataRecipe.model_validate({"sets": [{"path": "set", "instruction": "find"}], "negatives": {"depth": 7}})
    stage = ContrastiveStage(kind="contrastive", steps=1, mine=leg)
    with torch.inference_mode():
        hits = ranked(backbone, one, stage, settings, QuerySide())
        scores = {
            name: float(next(corpus_scores(backbone, "find", ["ask1 ask2"], [text], 512, QuerySide()))[leg][0, 0])
            for name, text in one.documents.items()
        }
    best = sorted(scores.values(), reverse=True)[:7]
    assert hits.keys() == {"ask1 ask2", "ask3 ask4"}
    assert [score for _, score in hits["ask1 ask2"]] == pytest.approx(best, rel=1e-4)
    assert all(score == pytest.approx(scores[name], rel=1e-4) for name, score in hits["ask1 ask2"])


def test_a_stage_has_the_negatives_that_were_mined_last(toy: Path, tmp_path: Path) -> None:
    mine = {"kind": "contrastive", "steps": 1, "mine": "dense", "negatives": 2, "warmup": 0.0, **SMALL}
    last = {"kind": "contrastive", "steps": 1, "negatives": 2, **SMALL}
    recipe = TrainRecipe.model_validate(
        recipe_of(toy, tmp_path, data=data(toy), stages=[{**mine, "learning_rate": 0.05}, mine, last])
    )
    assert train(recipe)
    (one,) = Run(recipe, Engine.of(recipe)).sets_of_stage()
    first, second = (read_examples(tmp_path / "work" / "data" / "pairs" / f"mined-{number}.json") for number in (0, 1))
    assert first != second
    assert one.examples == second


def one_set(toy: Path, negatives: tuple[str, ...] = ("d3", "d4")) -> TrainingSet:
    lines = (json.loads(line) for line in (toy / "pairs" / "corpus.jsonl").read_text().splitlines())
    documents = {line["_id"]: line["text"] for line in lines}
    examples = [Example("q0", "ask1 ask2", "d0", negatives), Example("q1", "ask3 ask4", "d1")]
    return TrainingSet("pairs", ("find",), 1.0, examples, documents)


def teachers_of(one: TrainingSet, folder: Path, *teachers: dict[str, Any], engine: Any = None) -> Teachers:
    recipe = DistillationRecipe.model_validate({"teachers": list(teachers), "scale": 7.0})
    return Teachers(recipe, [one], folder, engine, "cpu")


def test_scores_of_a_file(toy: Path, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("q0\td4\t3.5\nq0\td0\t1.5\nq0\td3\t2\nq1\td7\t1\n")
    one = one_set(toy)
    made = teachers_of(one, tmp_path / "teachers", {"scores": str(tmp_path / "{set}.tsv")})
    batch = Batch(one, one.examples, [["d0", "d4", "d3"], ["d1"]], [0, 0])
    logits = made.logits(batch, ["d1", "d3", "d0", "d4", "d9"])
    nan = np.nan
    np.testing.assert_allclose(logits, [[nan, 7 * 0.25, 0.0, 7.0, nan], [nan] * 5], rtol=1e-6)
    turned = Batch(one, one.examples[::-1], [["d1"], ["d0", "d4", "d3"]], [0, 0])
    np.testing.assert_array_equal(made.logits(turned, ["d1", "d3", "d0", "d4", "d9"]), logits[::-1])
    again = teachers_of(one, tmp_path / "teachers", {"scores": str(tmp_path / "{set}.tsv"), "weight": 3.0})
    names = ["d0", "d1", "d3", "d4"]
    np.testing.assert_array_equal(again.logits(batch, names), made.logits(batch, names))
    with raises(ResumeError, naming="examples"):
        teachers_of(one_set(toy, ("d3",)), tmp_path / "teachers", {"scores": str(tmp_path / "{set}.tsv")})
    bad = [(line, f"line 1: {line!r}") for line in ("q0\td4\tmuch", "q0\td4\tnan", "q0 d4 1.0")]
    none = [(line, f"{file}: this teacher scores no") for line in ("", "q7\td4\t1.0", "q0\td9\t1.0")]
    for number, (line, naming) in enumerate([*bad, *none]):
        file.write_text(f"{line}\n" if line else "")
        with raises(CorpusError, naming=naming):
            teachers_of(one, tmp_path / f"bad-{number}", {"scores": str(file)})


def test_a_cross_encoder_reads_every_candidate_with_its_query(toy: Path, tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"{side}{n}" for side in ("ask", "say") for n in range(16))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    for labels in (1, 3):
        torch.manual_seed(3)
        config = BertConfig(vocab_size=len(words), num_labels=labels, initializer_range=0.5, **shape)
        BertForSequenceClassification(config).save_pretrained(tmp_path / f"cross-{labels}")
        tokenizer.save_pretrained(tmp_path / f"cross-{labels}")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "cross-1").eval()
    one, names = one_set(toy), ["d0", "d3", "d4"]
    made = teachers_of(one, tmp_path / "teachers", {"cross_encoder": str(tmp_path / "cross-1")})
    read = tokenizer(["ask1 ask2"] * 3, [one.documents[name] for name in names], return_tensors="pt", padding=True)
    with torch.inference_mode():
        expected = torch.sigmoid(model(**read).logits[:, 0]).numpy()
    logits = made.logits(Batch(one, one.examples[:1], [names], [0]), names)
    np.testing.assert_allclose(logits[0], 7 * (expected - expected.min()) / np.ptp(expected), atol=2e-3)
    with raises(ModelError, naming="3 values"):
        teachers_of(one, tmp_path / "three", {"cross_encoder": str(tmp_path / "cross-3")})
    with raises(ModelError, naming=str(toy / "model")):  # which has no token to pad with
        teachers_of(one, tmp_path / "none", {"cross_encoder": str(toy / "model")})


@pytest.fixture(scope="module")
def bundle(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    corpus = {"path": str(toy / "pairs"), "name": "pairs"}
    model = {"path": str(toy / "model")}
    sections = {"corpus": corpus, "encode": {"max_length": 16, "top_k": 4}}
    run("build", write_recipe(folder, model, documents=1, tasks={"find": "find"}, **sections))
    return folder / "bundle"


@pytest.mark.slow
@pytest.mark.parametrize("leg", ["dense", "sparse"])
def test_a_leg_of_a_bundle_teaches_with_the_service_s_scores(toy: Path, bundle: Path, tmp_path: Path, leg: Any) -> None:
    """A candidate that the sparse leg doesn't find scores as the last that it finds."""
    with open_searcher(Bundle.open(bundle)) as searcher:
        hits = searcher.search("ask1 ask2", task="find", mode=leg, k=400, candidates=400, fusion=None) or []
    known = dict(hits)
    last, missing = min(known.values()), [name for name in one_set(toy).documents if name not in known]
    assert bool(missing) == (leg == "sparse")
    names = list(dict.fromkeys(["d0", *list(known)[:2], *missing[:1]]))
    one = one_set(toy, tuple(names[1:]))
    made = teachers_of(one, tmp_path, {"bundle": str(bundle), "leg": leg}, engine=open_searcher)
    expected = [known.get(name, last) for name in names]
    low, high = min(expected), max(expected)
    scaled = [7 * (score - low) / (high - low) for score in expected]
    np.testing.assert_allclose(made.logits(Batch(one, one.examples[:1], [names], [0]), names)[0], scaled, rtol=1e-5)
    with raises(RecipeError):
        teachers_of(one, tmp_path / "none", {"bundle": str(bundle)})


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A memory that holds `limit` positions of documents in one pass, as a GPU's would, and nothing at pass number
    `fails_at`; and how often it `failed`."""
    now, plain = SimpleNamespace(limit=10**9, fails_at=0, passes=0, failed=0), objectives.document_outputs

    def outputs(backbone: Any, sequences: list[list[int]]) -> Any:
        now.passes += 1
        if sum(map(len, sequences)) > now.limit or now.passes == now.fails_at:
            now.failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 1 GiB")
        return plain(backbone, sequences)

    monkeypatch.setattr(objectives, "document_outputs", outputs)
    return now


def test_chunks_are_halved_until_they_fit_and_losses_stay(toy: Path, tmp_path: Path, memory: SimpleNamespace) -> None:
    """Also where the second batch of a step is too large: the gradients of the first are forgotten. A run that goes on
    knows how many positions fit."""
    stage = {"kind": "contrastive", "steps": 3, "negatives": 0, "accumulate": 2, **SMALL, "batch_size": 24}
    lora, found = {"r": 8, "alpha": 16, "dropout": 0.0}, {}
    for name, limit, fails_at in (("plain", 10**9, 0), ("small", 100, 0), ("later", 10**9, 2)):
        vars(memory).update(limit=limit, fails_at=fails_at, passes=0, failed=0)
        recipe = TrainRecipe.model_validate(recipe_of(toy, tmp_path / name, lora=lora, stages=[stage]))
        assert not train(recipe, minutes=0)
        failed = memory.failed
        assert (failed > 0) == (name != "plain")
        assert train(recipe)
        assert memory.failed == failed
        found[name] = [loss for *_, loss in losses(tmp_path / name)]
    assert found["small"] == pytest.approx(found["plain"], rel=1e-4)
    assert found["later"] == pytest.approx(found["plain"], rel=1e-4)


@pytest.mark.parametrize("chunk_tokens", [None, 4096])
def test_memory_that_is_too_small_is_one_line_with_a_remedy(
    toy: Path, tmp_path: Path, memory: SimpleNamespace, chunk_tokens: int | None
) -> None:
    memory.limit = 1
    stage = {"kind": "contrastive", "steps": 3, "negatives": 0, "chunk_tokens": chunk_tokens, **SMALL}
    with raises(ModelError, naming="gradient_checkpointing") as caught:
        train(TrainRecipe.model_validate(recipe_of(toy, tmp_path, stages=[stage])))
    assert "\n" not in str(caught.value)
    assert "gradient_checkpointing" in caught.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize(("number", "error"), [(0, "OutOfMemoryError"), (1, "MemoryError")])
def test_memory_that_is_too_small_for_one_of_two_processes_ends_both_with_the_remedy(
    toy: Path, tmp_path: Path, number: int, error: str
) -> None:
    stage = {"kind": "contrastive", "steps": 3, "negatives": 0, **SMALL}
    module = ("tests.training.small_memory", str(number), error)
    result = launched(tmp_path, recipe_of(toy, tmp_path, stages=[stage]), *TORCHRUN, module=module)
    assert result.returncode != 0
    (said,) = [
        line for line in result.stderr.splitlines() if "too small for a training step" in line and "error: " in line[:7]
    ]
    assert "gradient_checkpointing" in said
    assert said.removeprefix("error: ") in result.stderr.rpartition("Root Cause")[2]  # of torchrun's own report
    assert "loop.py" not in result.stderr


def test_gradient_checkpointing_changes_no_loss(toy: Path, tmp_path: Path) -> None:
    """With dropout, whose masks must come again."""
    stage = {"kind": "contrastive", "steps": 3, "negatives": 0, **SMALL}
    found = {}
    for on in (False, True):
        changes = {"stages": [stage], "gradient_checkpointing": on}
        recipe = TrainRecipe.model_validate(recipe_of(toy, tmp_path / str(on), **changes))
        model = load_for_training(recipe, torch.device("cpu")).backbone.model
        assert model.is_gradient_checkpointing == on
        assert train(recipe)
        found[on] = [loss for *_, loss in losses(tmp_path / str(on))]
    assert found[True] == pytest.approx(found[False], rel=1e-6)


def test_a_whole_model_is_trained_and_read_again(toy: Path, tmp_path: Path) -> None:
    """Query likelihood on all weights, and then an adapter on what came of it, as the paper does."""
    likelihood = {"kind": "query_likelihood", "steps": 3, "before": "", "after": "", **SMALL, "learning_rate": 1e-3}
    settings = {"lora": False, "stages": [likelihood]}
    recipe = TrainRecipe.model_validate(recipe_of(toy, tmp_path, **settings))
    assert not train(recipe, minutes=0)
    assert train(recipe)
    before, after = (load_file(folder / "model.safetensors") for folder in (toy / "model", tmp_path / "adapter"))
    assert before.keys() == after.keys()
    assert all(not torch.equal(before[name], after[name]) for name in before if "proj" in name)
    assert "adapter_config.json" not in {file.name for file in (tmp_path / "adapter").iterdir()}
    AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert load(tmp_path / "adapter").bos_id == load(toy / "model").bos_id
    contrastive = {"kind": "contrastive", "steps": 2, "negatives": 0, **SMALL}
    second = recipe_of(toy, tmp_path / "second", stages=[contrastive])
    second["model"]["path"] = str(tmp_path / "adapter")
    assert train(TrainRecipe.model_validate(second))
    assert (tmp_path / "second" / "adapter" / "adapter_config.json").is_file()
    assert train(recipe)  # over what it wrote itself


def test_a_gguf_file_gets_an_adapter_and_is_not_trained_whole(toy: Path, model_folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", model_folder)
    stage = {"kind": "query_likelihood", "steps": 1, "before": "", "after": "", **SMALL}
    recipe = recipe_of(toy, tmp_path, stages=[stage])
    recipe["model"]["path"] = str(tmp_path / "tiny.gguf")
    with raises(RecipeError, naming="GGUF"):
        train(TrainRecipe.model_validate(recipe | {"lora": False}))
    assert train(TrainRecipe.model_validate(recipe))
    plain = load(tmp_path / "tiny.gguf").model.state_dict()
    adapted = load(tmp_path / "tiny.gguf", adapter=str(tmp_path / "adapter")).model.state_dict()
    assert any(not torch.equal(plain[name], adapted[name]) for name in plain)


def one_stage(kind: str = "contrastive", **settings: Any) -> dict[str, Any]:
    return {"stages": [{"kind": kind, "steps": 1, **settings}]}


@pytest.mark.parametrize(
    ("naming", "changes"),
    [
        ("model.centre_head", {"lora": False, "model": {"path": "TOY/model", "centre_head": True}}),
        ("nothing", {"lora": {"targets": ["nothing"]}}),
        ("lm_head", {"lora": {"targets": ["q_proj", "lm_head"]}}),
        ("lora.targets is 'all-linear'", {"lora": {"layers": 1}}),
        ("4096", {"data": {"sets": [{"path": "TOY/pairs", "instruction": ""}], "max_document_length": 4096}}),
        ("adapter", {"model": {"path": "TOY/model", "adapter": "x"}}),
        ("data.negatives", one_stage(negatives=0, mine="dense")),
        ("data.negatives", one_stage(negatives=3)),
        ("data.max_document_length is 16", one_stage("query_likelihood", before="find " * 20, **SMALL)),
        ("contrastive is 0", one_stage(contrastive=0)),
        ("negatives is 0", one_stage(negatives=0, distillation={"teachers": [{"scores": "x"}]})),
        ("distillation.teachers.0", one_stage(distillation={"teachers": [{"weight": 2}]})),
    ],
)
def test_impossible_settings_are_named(toy: Path, tmp_path: Path, naming: str, changes: dict[str, Any]) -> None:
    recipe = json.loads(json.dumps(recipe_of(toy, tmp_path, **changes)).replace("TOY", str(toy)))
    with raises(Exception, naming=naming):
        train(TrainRecipe.model_validate(recipe))
