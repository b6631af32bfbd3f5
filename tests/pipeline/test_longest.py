"""The longest text that a model reads: by its table of positions, where its settings say more or nothing."""

import json
from pathlib import Path

import pytest
import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.biencoder import load_biencoder
from lightretriever.artifacts.pipeline.loading import cut_at_longest, positions
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)
from transformers.models.bert.modeling_bert import BertEmbeddings

from tests.support.biencoder import save_biencoder

SHAPE = {"vocab_size": 400, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
ENCODERS = {
    "bert": (BertConfig(max_position_embeddings=40, num_hidden_layers=1, **SHAPE), 40),
    "electra": (ElectraConfig(max_position_embeddings=40, num_hidden_layers=1, embedding_size=32, **SHAPE), 40),
    "distilbert": (DistilBertConfig(max_position_embeddings=40, vocab_size=400, dim=32, n_layers=1, n_heads=4), 40),
    "roberta": (RobertaConfig(max_position_embeddings=42, num_hidden_layers=1, pad_token_id=1, **SHAPE), 40),
    "xlm-roberta": (XLMRobertaConfig(max_position_embeddings=42, num_hidden_layers=1, pad_token_id=1, **SHAPE), 40),
    "roberta, padding 0": (RobertaConfig(max_position_embeddings=42, num_hidden_layers=1, pad_token_id=0, **SHAPE), 41),
    "mpnet": (MPNetConfig(max_position_embeddings=42, num_hidden_layers=1, pad_token_id=1, **SHAPE), 40),
    "gpt2": (GPT2Config(vocab_size=400, n_positions=40, n_embd=32, n_layer=1, n_head=4), 40),
}
UNBOUNDED = {
    "modernbert": ModernBertConfig(num_hidden_layers=1, pad_token_id=0, **SHAPE),
    "llama": LlamaConfig(num_hidden_layers=1, **SHAPE),
}


def save(folder: Path, config: PreTrainedConfig) -> Path:
    """A bi-encoder of this architecture, whose folder says nothing of a longest text."""
    save_biencoder(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    config.vocab_size = len(AutoTokenizer.from_pretrained(str(folder)))
    torch.manual_seed(3)
    AutoModel.from_config(config).save_pretrained(folder)
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        content = json.loads((folder / name).read_text())
        content.pop(key, None)
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", ENCODERS)
def test_texts_are_cut_at_what_the_positions_hold(kind: str, tmp_path: Path) -> None:
    config, longest = ENCODERS[kind]
    encoder = load_biencoder(str(save(tmp_path / "model", config)), device="cpu")
    assert positions(encoder.model) == longest
    assert encoder.longest == longest
    words = [" ".join(["music"] * count) for count in (longest - 2, longest - 1, 100)]
    assert encoder.are_cut(words) == [False, True, True]
    exact, _, long = encoder.encode_documents(words).dense
    assert long == pytest.approx(exact, abs=1e-6)
    assert encoder.encode_queries(words[2:]).dense[0] == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_a_model_without_such_a_table_is_left_as_it_is(kind: str) -> None:
    assert positions(AutoModel.from_config(UNBOUNDED[kind])) is None


def test_what_a_folder_says_counts_where_it_is_less(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", ENCODERS["roberta"][0])
    for stated, longest in ((12, 12), (42, 40), (512, 40)):
        settings = json.loads((folder / "sentence_bert_config.json").read_text()) | {"max_seq_length": stated}
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
        assert load_biencoder(str(folder), device="cpu").longest == longest


def test_a_model_that_fails_on_its_longest_text_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    model = SentenceTransformer(str(save(tmp_path / "model", ENCODERS["bert"][0])), device="cpu")
    (inner,) = (module for module in model.modules() if isinstance(module, BertEmbeddings))
    inner.register_buffer("position_ids", torch.arange(10)[None])
    with pytest.raises(ModelError, match=r"can't read a text of 40 tokens, as long as it says it reads: .*max_seq_len"):
        cut_at_longest("model", model[0])
