"""Which recorded system stands in which table of results, in which order, under which label.

A system that has no place here comes last in docs/evaluation.md, under its own name.
"""

from collections.abc import Mapping, Sequence

__all__ = [
    "ABLATIONS",
    "CHINESE",
    "CHINESE_COMPARISONS",
    "CHINESE_DATASETS",
    "COMPARISONS",
    "DATASETS",
    "KEPT",
    "MAIN",
    "POSTINGS",
    "SHORT",
    "SHORT_DATASETS",
]

DATASETS = ("scifact", "vaswani", "cranfield", "cacm", "wikiqa", "trecqa", "race-qa-test")
"""Columns, in order; other datasets that are recorded follow by name."""

CHINESE_DATASETS = ("cmrc2018-zh", "drcd-zh")
"""The columns of a table of their own."""

Systems = Sequence[tuple[str, str]]


def legs(name: str, label: str, *systems: str) -> list[tuple[str, str]]:
    """Rows for several systems of one recorded name."""
    return [(f"{name} {system}", f"{label}, {system}") for system in systems]


LIGHT = ("dense", "sparse", "hybrid")
MAIN: Systems = [
    ("bm25", "BM25"),
    ("wordllama full-dense", "static embeddings (wordllama, 256)"),
    ("minilm full-dense", "MiniLM-L6, its query encoder"),
    ("minilm full-hybrid", "MiniLM-L6, its query encoder + BM25 impacts"),
    ("minilm-words full-hybrid", "MiniLM-L6, its query encoder + BM25 on words"),
    ("mpnet full-dense", "mpnet, its query encoder"),
    ("mpnet full-hybrid", "mpnet, its query encoder + BM25 impacts"),
    ("smollm2 full-dense", "SmolLM2-135M, full query, dense"),
    ("smollm2 full-hybrid", "SmolLM2-135M, full query, + BM25 on words"),
    ("smollm2-given dense", "SmolLM2-135M, table as it gives it, dense"),
    ("smollm2-given hybrid", "SmolLM2-135M, table as it gives it, + BM25 on words"),
    ("smollm2 dense", "SmolLM2-135M, fitted table, dense"),
    ("smollm2 sparse", "SmolLM2-135M, BM25 over its tokens"),
    ("smollm2-expanded sparse", "SmolLM2-135M, BM25 over its tokens, expanded by the fitted table"),
    ("smollm2 hybrid", "SmolLM2-135M, fitted table + BM25 on words"),
    ("smollm2-tuned hybrid", "SmolLM2-135M, fitted table + BM25 on words, weights by development queries"),
    *legs("lightretriever-fitted", "SmolLM2-135M, earlier adapter, fitted table", *LIGHT),
    ("mpnet dense", "table distilled from mpnet, dense"),
    ("mpnet hybrid", "table distilled from mpnet + BM25 impacts"),
    ("minilm dense", "table distilled from MiniLM, dense"),
    ("minilm hybrid", "table distilled from MiniLM + BM25 impacts"),
    ("minilm-words hybrid", "table distilled from MiniLM + BM25 on words, 0.5 / 0.5"),
    ("minilm-tuned hybrid", "the same, weights by development queries"),
    ("mpnet-granite full-dense", "mpnet and granite-30m side by side, their query encoders"),
    ("mpnet-granite full-hybrid", "mpnet and granite-30m side by side, their query encoders + BM25 on words"),
    ("mpnet-granite dense", "table distilled from mpnet and granite-30m, dense"),
    ("mpnet-granite-expanded sparse", "BM25 over mpnet's tokens, expanded by that table"),
    ("mpnet-granite hybrid", "table distilled from mpnet and granite-30m + BM25 on words, 0.5 / 0.5"),
    ("mpnet-granite-tuned hybrid", "table distilled from mpnet and granite-30m + BM25, weights by development queries"),
]

CHINESE: Systems = [
    ("bm25", "BM25, pairs of neighbouring signs"),
    ("e5 sparse", "BM25 over multilingual-e5-small's tokens"),
    ("e5 full-dense", "multilingual-e5-small, its query encoder"),
    ("e5 full-hybrid", "multilingual-e5-small, its query encoder + BM25"),
    ("e5 dense", "table distilled from it, dense"),
    ("e5 hybrid", "table distilled from it + BM25, 0.5 / 0.5"),
]
CHINESE_COMPARISONS = [("e5 hybrid", "bm25"), ("e5 dense", "e5 full-dense"), ("e5 hybrid", "e5 full-hybrid")]

SHORT: Sequence[tuple[str, str, bool]] = [
    ("bm25", "BM25", False),
    ("wordllama full-hybrid", "static embeddings (wordllama) + BM25 impacts", False),
    ("minilm-tuned hybrid", "**recommended: MiniLM's table + BM25 on words**, weights tuned", False),
    ("minilm-words hybrid", "the same, weights 0.5 / 0.5", False),
    ("minilm-words full-hybrid", "its encoder: MiniLM + BM25 on words, weights 0.5 / 0.5", True),
    ("mpnet-granite-tuned hybrid", "best: mpnet and granite side by side, their table + BM25 on words, tuned", False),
    ("smollm2 hybrid", "SmolLM2-135M's table + BM25 on words, weights 0.5 / 0.5", False),
    ("smollm2 full-hybrid", "its model: SmolLM2-135M + BM25 on words, weights 0.5 / 0.5", True),
]
"""README's table: system, label, and whether a model runs for every query."""

SHORT_DATASETS = ("scifact", "wikiqa")
"""The sets that stand beside the average in README's table."""


def training(name: str, base: str) -> Systems:
    """Rows for a trained model and the variants of its training (`recipes/ablations.py`)."""
    variants = {
        "no-kl": "without KL",
        "no-idf": "plain FLOPS, not IDF-aware",
        "no-idf-rows": "table rows not weighted by IDF",
        "no-thresholds": "without term thresholds",
        "no-warmup": "without the query-likelihood warm-up",
        "no-distillation": "without teachers",
        "no-matryoshka": "without Matryoshka",
        "embedding-queries": "query through the embedding layer only (A2)",
    }
    rows = [*legs(name, base, *LIGHT)]
    for variant, label in variants.items():
        rows += legs(f"{name}-{variant}", label, *LIGHT)
    return rows


ABLATIONS: Mapping[str, Systems] = {
    "Training": [*training("lightretriever", "all parts"), *legs("untrained", "not trained at all", *LIGHT)],
    "Training, short runs": training("short", "all parts"),
    "The sparse leg alone": [
        ("bm25", "BM25 on words"),
        ("smollm2 sparse", "BM25 over SmolLM2's tokens"),
        ("smollm2-expanded sparse", "expanded by SmolLM2's fitted table"),
        ("mpnet-granite sparse", "BM25 over mpnet's tokens"),
        ("mpnet-granite-expanded sparse", "expanded by the table of mpnet and granite-30m"),
        ("mpnet-granite dense", "for comparison: that table's dense leg alone"),
    ],
    "What is light": [
        ("lightretriever full-dense", "nothing: queries by the whole model, dense"),
        *legs("lightretriever-fitted", "queries, table refined on the corpus", "dense"),
        *legs("lightretriever", "queries, table as the model gives it", "dense"),
        ("light-documents full-dense", "queries and documents, by that table (A1), dense"),
    ],
    "Fitting to the corpus": [
        *legs("lightretriever", "as the training leaves it", *LIGHT),
        *legs("lightretriever-refined", "table refined", "hybrid"),
        *legs("lightretriever-fitted", "table refined, and IDF of the corpus", *LIGHT),
        ("lightretriever full-hybrid", "queries by the whole model, hybrid"),
    ],
    "Dimensions (Matryoshka)": [
        *legs("lightretriever", "all 576", "dense", "hybrid"),
        *(
            row
            for size in (512, 384, 256, 192, 128, 96, 64)
            for row in legs(f"lightretriever-d{size}", str(size), "dense", "hybrid")
        ),
    ],
    "Terms kept per document": [
        *legs("lightretriever", "128", "sparse", "hybrid"),
        *(
            row
            for size in (32, 64, 256, 512, "all")
            for row in legs(f"lightretriever-k{size}", str(size), "sparse", "hybrid")
        ),
    ],
    "Fusion": [
        ("lightretriever hybrid", "weights 0.5 / 0.5, as served"),
        ("lightretriever hybrid-paper", "0.7 / 0.3, the paper's normalisation"),
        *((f"lightretriever-w{d / 10} hybrid", f"{d / 10} / {(10 - d) / 10:.1f}") for d in (9, 8, 7, 6, 4, 3, 2, 1)),
        ("lightretriever-rrf hybrid", "reciprocal ranks"),
    ],
}
POSTINGS: Systems = [
    ("lightretriever sparse", "LightRetriever"),
    ("lightretriever-fitted sparse", "IDF of the corpus"),
    ("lightretriever full-sparse", "SmolLM2-135M, full query"),
    ("lightretriever-no-idf sparse", "plain FLOPS, not IDF-aware"),
    ("lightretriever-no-warmup sparse", "without the query-likelihood warm-up"),
    ("short sparse", "LightRetriever, short run"),
    ("short-no-idf sparse", "short run, plain FLOPS"),
    *((f"lightretriever-k{size} sparse", f"{size} terms per document") for size in (32, 64, 256, 512, "all")),
    ("untrained sparse", "not trained at all"),
    ("mpnet sparse", "BM25 impacts on mpnet's tokenizer"),
]
COMPARISONS = [
    ("lightretriever hybrid", "bm25"),
    ("lightretriever hybrid", "lightretriever dense"),
    ("lightretriever hybrid", "lightretriever sparse"),
    ("lightretriever hybrid", "lightretriever full-hybrid"),
    ("lightretriever-fitted hybrid", "bm25"),
    ("lightretriever-fitted hybrid", "lightretriever-fitted dense"),
    ("lightretriever-fitted hybrid", "lightretriever-fitted sparse"),
    ("lightretriever-fitted hybrid", "lightretriever hybrid"),
    ("lightretriever-fitted hybrid", "lightretriever-refined hybrid"),
    ("lightretriever-fitted hybrid", "lightretriever full-hybrid"),
    ("lightretriever-fitted dense", "lightretriever full-dense"),
    ("lightretriever hybrid", "lightretriever hybrid-paper"),
    ("lightretriever hybrid", "lightretriever-no-kl hybrid"),
    ("lightretriever hybrid", "lightretriever-no-warmup hybrid"),
    ("lightretriever hybrid", "lightretriever-no-distillation hybrid"),
    ("lightretriever sparse", "lightretriever-no-idf sparse"),
    ("short sparse", "short-no-idf sparse"),
    ("short hybrid", "short-no-kl hybrid"),
    ("short hybrid", "short-no-warmup hybrid"),
    ("short dense", "short-embedding-queries dense"),
    ("lightretriever hybrid", "mpnet hybrid"),
    ("smollm2 hybrid", "bm25"),
    ("smollm2 hybrid", "smollm2-given hybrid"),
    ("smollm2 hybrid", "smollm2 full-hybrid"),
    ("smollm2 hybrid", "lightretriever-fitted hybrid"),
    ("smollm2 dense", "smollm2 full-dense"),
    ("smollm2 hybrid", "minilm-words hybrid"),
    ("mpnet dense", "mpnet full-dense"),
    ("mpnet hybrid", "mpnet full-hybrid"),
    ("mpnet hybrid", "bm25"),
    ("minilm dense", "minilm full-dense"),
    ("minilm-words hybrid", "bm25"),
    ("minilm-words hybrid", "minilm hybrid"),
    ("minilm-tuned hybrid", "bm25"),
    ("minilm-tuned hybrid", "minilm-words hybrid"),
    ("minilm-words hybrid", "minilm-words full-hybrid"),
    ("mpnet-granite hybrid", "bm25"),
    ("mpnet-granite hybrid", "minilm-words hybrid"),
    ("mpnet-granite-expanded sparse", "bm25"),
    ("mpnet-granite-expanded sparse", "mpnet-granite dense"),
    ("smollm2-expanded sparse", "bm25"),
    ("smollm2-expanded sparse", "smollm2 sparse"),
    ("mpnet-granite hybrid", "mpnet-granite full-hybrid"),
    ("mpnet-granite-tuned hybrid", "minilm-tuned hybrid"),
]
KEPT = [
    *((f"lightretriever {leg}", f"lightretriever full-{leg}") for leg in LIGHT),
    *((f"lightretriever-fitted {leg}", f"lightretriever full-{leg}") for leg in LIGHT),
    *((f"{name} {leg}", f"{name} full-{leg}") for name in ("mpnet", "minilm") for leg in ("dense", "hybrid")),
    ("minilm-words hybrid", "minilm-words full-hybrid"),
    ("mpnet-granite dense", "mpnet-granite full-dense"),
    ("mpnet-granite hybrid", "mpnet-granite full-hybrid"),
    ("smollm2 dense", "smollm2 full-dense"),
    ("smollm2 hybrid", "smollm2 full-hybrid"),
    ("smollm2-given hybrid", "smollm2 hybrid"),
    ("smollm2 hybrid", "bm25"),
    ("lightretriever hybrid", "bm25"),
    ("lightretriever-fitted hybrid", "bm25"),
    ("mpnet hybrid", "bm25"),
    ("minilm-words hybrid", "bm25"),
]
"""Systems, and what they are to come close to, or to beat."""
