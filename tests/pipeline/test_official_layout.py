"""Checkpoints in the layout of the official LightRetriever releases: base model, PEFT adapter with its tokenizer."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from tests.support.commands import run
from tests.support.models import save_model
from tests.support.recipes import write_recipe

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def save_release(folder: Path, kind: str, *, causal: bool) -> tuple[Path, Path]:
    """Base model of the family `kind`, and an adapter directory that brings the tokenizer along."""
    base = save_model(folder / kind, kind)
    model = (AutoModelForCausalLM if causal else AutoModel).from_pretrained(base)
    torch.manual_seed(4)
    task = TaskType.CAUSAL_LM if causal else TaskType.FEATURE_EXTRACTION
    config = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.1, init_lora_weights=False, target_modules=LAYERS, task_type=task
    )
    get_peft_model(model, config).save_pretrained(str(folder / "adapter"))
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "adapter")
    return base, folder / "adapter"


@pytest.mark.parametrize("causal", [True, False], ids=["causal-lm", "decoder-alone"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_release_becomes_a_bundle_that_answers(kind: str, causal: bool, tmp_path: Path) -> None:
    base, adapter = save_release(tmp_path, kind, causal=causal)
    model = {"path": str(base), "adapter": str(adapter), "trained": True}
    tasks = {"search": "Given a web search query, retrieve relevant passages that answer the query"}
    run("build", write_recipe(tmp_path, model, documents=20, tasks=tasks, encode={"max_length": 64}))
    assert verify_bundle(tmp_path / "bundle") == []
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest.model.adapter == "adapter"
    assert bundle.manifest.sparse.query_weights == "count"  # releases bring no IDF
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as engine:
        hits = engine.search(SearchRequest(query="music player", k=5)).hits
    assert len(hits) == 5
    assert all(np.isfinite(hit.score) for hit in hits)
