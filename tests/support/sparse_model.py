"""Tiny real SparseEncoders, made in memory and saved as sentence-transformers directories."""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import StaticEmbedding, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast


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
