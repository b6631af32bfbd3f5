"""Tiny real encoders, dense and sparse, made in memory and saved as sentence-transformers directories."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerFast

from tests.support.tiny import tiny_documents

VOCABULARY = 400
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def save_biencoder(
    folder: Path,
    *,
    prompts: dict[str, str] | None = None,
    hidden_size: int = 32,
    vocabulary: int = VOCABULARY,
    include_prompt: bool = True,
    pooling: str | None = "mean",
    seed: int = 11,
    tokenizer: Tokenizer | None = None,
    behind: Sequence[torch.nn.Module] = (Normalize(),),
    truncate_dim: int | None = None,
) -> Path:
    """Save a seeded random BERT with a pooling, the modules `behind` it, and a real tokenizer (None: WordPiece), which
    frames a text by [CLS] and [SEP]; return its folder. Without `pooling`, it has a vector for each token alone."""
    tokenizer = tokenizer or _tokenizer([document.full_text for document in tiny_documents(80)], vocabulary)
    frame = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * hidden_size,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.08,
    )
    torch.manual_seed(seed)
    backbone = folder.with_name(f"{folder.name}.backbone")
    bert = BertModel(config)
    # In a trained model a text's vector says mostly which words are in it; in a random one, which places.
    torch.nn.init.normal_(bert.embeddings.word_embeddings.weight, std=0.5)
    bert.save_pretrained(backbone)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **SPECIAL).save_pretrained(backbone)
    transformer = Transformer(str(backbone), max_seq_length=64)
    modules: list[torch.nn.Module] = [transformer]
    if pooling is not None:
        modules += [Pooling(hidden_size, pooling, include_prompt=include_prompt), *behind]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=prompts, truncate_dim=truncate_dim)
    model.save(str(folder), create_model_card=False)
    return folder


def save_static(
    folder: Path, tokenizer: Tokenizer, dimension: int, *behind: torch.nn.Module, truncate_dim: int | None = None
) -> torch.Tensor:
    """Save a model of static embeddings with seeded random rows and the modules `behind`, and return the rows."""
    rows = torch.randn(tokenizer.get_vocab_size(), dimension, generator=torch.Generator().manual_seed(3))
    modules = [StaticEmbedding(tokenizer, embedding_weights=rows), *behind]
    model = SentenceTransformer(modules=modules, device="cpu", truncate_dim=truncate_dim)
    model.save(str(folder), create_model_card=False)
    return rows


def save_sparse_model(folder: Path, biencoder: Path, *, static_queries: bool = True) -> Path:
    """Save a seeded random masked language model with SPLADE pooling and the tokenizer of `biencoder`; with
    `static_queries`, a Router whose queries are weighed by a table, as in OpenSearch's doc-v3 models."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(biencoder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    torch.manual_seed(5)
    backbone = folder.with_name(f"{folder.name}.backbone")
    BertForMaskedLM(config).save_pretrained(backbone)
    tokenizer.save_pretrained(backbone)
    reader = Transformer(str(backbone), transformer_task="fill-mask", max_seq_length=64)
    modules: list[Any] = [reader, SpladePooling("max")]
    if static_queries:
        weights = torch.rand(len(tokenizer)) * 5
        weights[:5] = 0  # of special tokens
        asked = SparseStaticEmbedding(tokenizer=tokenizer, weight=weights, frozen=True)
        modules = [Router.for_query_document([asked], modules)]
    SparseEncoder(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return folder


def save_dense_router(folder: Path, biencoder: Path) -> Path:
    """Save an asymmetric bi-encoder: documents are read by `biencoder`, queries by a table of static embeddings."""
    whole: Any = SentenceTransformer(str(biencoder), device="cpu")
    torch.manual_seed(6)
    static = StaticEmbedding(whole.tokenizer.backend_tokenizer, embedding_dim=whole.get_embedding_dimension())
    router = Router.for_query_document([static], [*whole])
    SentenceTransformer(modules=[router], device="cpu").save(str(folder), create_model_card=False)
    return folder


def _tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """WordPiece over all characters and the most frequent words; the library's trainer draws another one each time."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = Counter(
        word
        for text in texts
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    )
    characters = sorted(set("".join(words)))
    frequent = sorted(words, key=lambda word: (-words[word], word))
    pieces = [*SPECIAL.values(), *characters, *(f"##{character}" for character in characters), *frequent]
    tokenizer.model = models.WordPiece(
        {piece: index for index, piece in enumerate(list(dict.fromkeys(pieces))[:vocabulary])}, unk_token="[UNK]"
    )
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    return tokenizer
