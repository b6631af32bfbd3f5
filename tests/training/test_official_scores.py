"""Scores by the formulas of the official implementation, written down here independently, on tiny models.

One test compares with numbers of its notebooks, where the folder that LIGHTRETRIEVER_QWEN names has `base/`
(Qwen2.5-1.5B) and `adapter/` (lightretriever-qwen2.5-1.5b).
"""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.language_model import LanguageModel, instruction_prefix
from lightretriever.artifacts.pipeline.recipe import EncodeRecipe
from lightretriever.service.commands.evaluation import open_searcher
from tests.support.commands import run
from tests.support.models import load, save_model
from tests.support.recipes import write_recipe
from tests.support.tiny import tiny_documents

INSTRUCTION = "Find it"
QWEN = os.environ.get("LIGHTRETRIEVER_QWEN")


def test_texts_begin_with_bos_only_where_the_tokenizer_says_so(model_folder: Path, tmp_path: Path) -> None:
    without = save_model(tmp_path / "without", "llama", bos_token=None)
    backbone = load(without)
    assert (backbone.bos_id, backbone.frame([9])) == (None, [9, backbone.eos_id])
    assert instruction_prefix(backbone, "") == [backbone.eos_id]
    assert load(model_folder).bos_id is not None
    named = AutoTokenizer.from_pretrained(without)
    named.bos_token = "<|im_start|>"  # named, but not put before a text
    named.save_pretrained(without)
    assert load(without).bos_id is None
    assert load(without, bos_token="<|im_start|>").bos_id is not None


@pytest.mark.skipif(QWEN is None, reason="LIGHTRETRIEVER_QWEN names no folder")
def test_golden_scores_of_the_notebooks(tmp_path: Path) -> None:
    """They mask no position and add no space."""
    folder = Path(str(QWEN))
    qwen = load(folder / "base", adapter=str(folder / "adapter"), dtype="bfloat16", device="auto")
    queries = [
        qwen.tokenizer.encode(text).tolist() for text in ("How tall is Mount Everest?", "Who invented the light bulb?")
    ]
    corpus = [
        "Mount Everest is the highest mountain in the world, about 8,848 meters tall.",
        "Thomas Edison invented the electric light bulb.",
        "Mount Fuji is the tallest mountain in Japan.",
    ]
    golden = [{5158, 16217, 374, 6470, 3512, 477, 30}, {14623, 35492, 279, 3100, 45812, 30}]
    assert [Counter(query) for query in queries] == [Counter(ids) for ids in golden]
    unmasked = LanguageModel.of(replace(qwen, sparse_inner=False), EncodeRecipe(top_k=None))
    rows = [
        dict(zip(*map(np.ndarray.tolist, row), strict=True)) for row in unmasked.encode_documents(corpus).sparse or []
    ]
    sparse = [[sum(row.get(token, 0) for token in query) / 100 for row in rows] for query in queries]
    np.testing.assert_allclose(sparse, [[12.949, 1.281, 9.188], [1.770, 11.746, 1.816]], atol=0.15)
    instruction = "Given a web search query, retrieve relevant passages that answer the query"
    encoder = LanguageModel.of(qwen)
    table, dense = token_rows(encoder, instruction, tmp_path), encoder.encode_documents(corpus).dense
    means = np.stack([table[query].mean(axis=0) for query in queries])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(means @ dense.T, [[0.3945, 0.0483, 0.3105], [0.0076, 0.3945, 0.0148]], atol=0.02)


def test_an_official_checkpoint_is_searched_as_its_code_searches(model_folder: Path, tmp_path: Path) -> None:
    """From the query's text to the scores, by the service: dense without a space before the first word, sparse behind
    one; states, logits and tokens by transformers alone."""
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    torch.manual_seed(5)
    adapter = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapter.save_pretrained(str(tmp_path / "adapter"))
    merged, tokenizer = adapter.merge_and_unload(), AutoTokenizer.from_pretrained(model_folder)
    model = {"path": str(model_folder), "adapter": str(tmp_path / "adapter")}
    index = {"table_dtype": "float32", "vocabulary": "tokens"}
    sections: dict[str, Any] = {"encode": {"max_length": 512, "top_k": None}, "index": index}
    run("build", write_recipe(tmp_path, model, documents=12, tasks={"find": INSTRUCTION}, **sections))

    def read(ids: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.inference_mode():
            out = merged(input_ids=torch.tensor([ids]), output_hidden_states=True)
        return out.hidden_states[-1][0].numpy(), out.logits[0].numpy()

    prompt = tokenizer.encode(f"instruct: {INSTRUCTION}\nquery: ".lower(), add_special_tokens=True)
    documents = {document.id: document.full_text.lower() for document in tiny_documents(12)}
    del documents["special"]  # whose special tokens are ordinary text to us
    dense, impacts = {}, {}
    for name, text in documents.items():
        hidden, logits = read([*tokenizer.encode(text, add_special_tokens=True), tokenizer.eos_token_id])
        dense[name] = hidden[-1] / np.linalg.norm(hidden[-1])
        impacts[name] = np.round(100 * np.log1p(np.maximum(logits[1:-1].max(axis=0), 0)))
    differ = 0
    bundle = Bundle.open(tmp_path / "bundle")
    assert (bundle.manifest.model.adapter, bundle.manifest.sparse.query_weights) == ("adapter", "count")
    with open_searcher(bundle) as searcher:
        for query in ("music player", "zebra", "Text editor with plugins"):
            plain, spaced = (tokenizer.encode(text.lower(), add_special_tokens=False) for text in (query, f" {query}"))
            differ += plain != spaced
            rows = np.stack([read([*prompt, token, tokenizer.eos_token_id])[0][-1] for token in plain])
            vector = rows.mean(axis=0) / np.linalg.norm(rows.mean(axis=0))
            found = {}
            for mode in ("dense", "sparse"):
                asked: Any = {"task": "find", "mode": mode, "k": 12, "candidates": 12, "fusion": None}
                hits = searcher.search(query, **asked) or []
                found[mode] = {name: score for name, score in hits if name != "special"}
            assert found["dense"] == pytest.approx({name: vector @ own for name, own in dense.items()}, abs=2e-3)
            if tokenizer.decode(spaced[0]) == " ":  # no part of a word, in so small a vocabulary
                del spaced[0]
            expected = {name: own[spaced].sum() for name, own in impacts.items()}
            assert found["sparse"] == pytest.approx({n: s for n, s in expected.items() if s > 0}, abs=len(spaced))
    assert differ == 3
