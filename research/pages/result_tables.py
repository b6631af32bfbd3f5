"""Which recorded system stands in which table of results, in which order, under which label.

A system that has no place here comes last in docs/lab/quality.md, under its own name.
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


LIGHT = ("dense", "sparse", "hybrid")


def legs(name: str, label: str, *systems: str) -> list[tuple[str, str]]:
    """Rows for several systems of one recorded name."""
    return [(f"{name} {system}", f"{label}, {system}") for system in systems]


MAIN: Systems = [
    ("bm25", "BM25"),
    ("wordllama full-dense", "static embeddings (wordllama, 256), dense"),
    ("wordllama full-hybrid", "static embeddings (wordllama, 256), hybrid"),
    *legs("wordllama", "static embeddings, their rows times IDF as the table", *LIGHT),
    ("minilm full-dense", "MiniLM-L6, its query encoder, dense"),
    ("minilm full-hybrid", "MiniLM-L6, its query encoder, hybrid"),
    ("mpnet full-dense", "mpnet, its query encoder, dense"),
    ("mpnet-granite full-dense", "mpnet and granite-30m side by side, their query encoders, dense"),
    ("mpnet-granite full-hybrid", "mpnet and granite-30m side by side, their query encoders, hybrid"),
    ("smollm2 full-dense", "SmolLM2-135M, full query, dense"),
    ("smollm2 full-hybrid", "SmolLM2-135M, full query, hybrid"),
    *legs("smollm2-given", "SmolLM2-135M, table as it gives it", *LIGHT),
    *legs("smollm2", "SmolLM2-135M, fitted table", *LIGHT),
    ("smollm2-tuned hybrid", "SmolLM2-135M, fitted table, hybrid, weights by development queries"),
    ("mpnet dense", "table distilled from mpnet, dense"),
    *legs("minilm-general", "MiniLM's general table", *LIGHT),
    *legs("minilm", "table distilled from MiniLM", *LIGHT),
    ("minilm-tuned hybrid", "table distilled from MiniLM, hybrid, weights by development queries"),
    *legs("mpnet-granite", "table distilled from mpnet and granite-30m", *LIGHT),
    (
        "mpnet-granite-tuned hybrid",
        "table distilled from mpnet and granite-30m, hybrid, weights by development queries",
    ),
]
"""*sparse* is the sparse leg alone: words, expanded by the table that is named."""

CHINESE: Systems = [
    ("bm25", "BM25, pairs of neighbouring signs"),
    ("e5 full-dense", "multilingual-e5-small, its query encoder, dense"),
    ("e5 full-hybrid", "multilingual-e5-small, its query encoder, hybrid"),
    *legs("e5-general", "its general table", *LIGHT),
    *legs("e5", "table distilled from it", *LIGHT),
]
CHINESE_COMPARISONS = [
    ("e5 dense", "bm25"),
    ("e5 full-dense", "bm25"),
    ("e5 sparse", "bm25"),
    ("e5 hybrid", "bm25"),
    ("e5-general dense", "bm25"),
    ("e5-general sparse", "bm25"),
    ("e5-general hybrid", "bm25"),
    ("e5-general hybrid", "e5 hybrid"),
    ("e5 hybrid", "e5 sparse"),
    ("e5 dense", "e5 full-dense"),
    ("e5 hybrid", "e5 full-hybrid"),
]

SHORT: Sequence[tuple[str, str, bool]] = [
    ("bm25", "BM25", False),
    ("wordllama full-hybrid", "static embeddings (wordllama), weights 0.5 / 0.5", False),
    ("minilm-general sparse", "the sparse leg alone: words, expanded by MiniLM's general table", False),
    ("minilm-general hybrid", "**recommended: MiniLM's general table**, weights 0.5 / 0.5", False),
    ("minilm hybrid", "the same, the table fitted to the corpus", False),
    ("minilm-tuned hybrid", "the same, the table fitted and the weights tuned", False),
    ("minilm full-hybrid", "its encoder: MiniLM, weights 0.5 / 0.5", True),
    ("mpnet-granite sparse", "the sparse leg alone: words, expanded by mpnet's and granite's table", False),
    ("mpnet-granite hybrid", "mpnet's and granite's table, weights 0.5 / 0.5", False),
    ("mpnet-granite-tuned hybrid", "mpnet's and granite's table, weights tuned", False),
    ("mpnet-granite full-hybrid", "its encoders: mpnet and granite, weights 0.5 / 0.5", True),
    ("smollm2-given hybrid", "SmolLM2-135M's own table, weights 0.5 / 0.5", False),
    ("smollm2 hybrid", "SmolLM2-135M, its table fitted to the corpus", False),
    ("smollm2 full-hybrid", "its model: SmolLM2-135M, weights 0.5 / 0.5", True),
]
"""README's table: system, label, and whether a model runs for every query. A hybrid one is the dense leg of the table
or model that is named, and words that its table expands."""

SHORT_DATASETS = ("scifact", "wikiqa")
"""The sets that stand beside the average in README's table."""


def training(name: str, base: str) -> Systems:
    """Rows for a trained model and the variants of its training (`research/quality/ablations.py`)."""
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
    "A multilingual encoder, on English": [
        *legs("e5-general", "multilingual-e5-small's general table", *LIGHT),
        *legs("e5", "table distilled from it", *LIGHT),
    ],
    "The sparse leg alone": [
        ("bm25", "BM25 on words, by Lucene"),
        ("minilm-plain sparse", "words with BM25 impacts"),
        ("mpnet-granite-plain sparse", "the same, of another bundle"),
        ("minilm sparse", "words, expanded by MiniLM's table"),
        ("minilm-general sparse", "words, expanded by MiniLM's general table"),
        ("minilm-b0 sparse", "the same, from BM25 without a document's length (b 0)"),
        ("mpnet-granite sparse", "words, expanded by the table of mpnet and granite-30m"),
        ("smollm2-given sparse", "words, expanded by SmolLM2's own table"),
        ("smollm2 sparse", "words, expanded by SmolLM2's fitted table"),
        ("wordllama sparse", "words, expanded by static embeddings"),
        ("minilm-tokens sparse", "MiniLM's tokens with BM25 impacts"),
        ("minilm-both sparse", "words, expanded by MiniLM's table, and its tokens"),
        ("minilm dense", "for comparison: the dense leg alone, MiniLM's table"),
        ("mpnet-granite dense", "for comparison: the dense leg alone, the table of mpnet and granite-30m"),
    ],
    "Beside the dense leg": [
        ("minilm-plain hybrid", "words with BM25 impacts"),
        ("minilm hybrid", "words, expanded by MiniLM's table"),
        ("minilm-b0 hybrid", "the same, from BM25 without a document's length (b 0)"),
        ("minilm-tokens hybrid", "MiniLM's tokens with BM25 impacts"),
        ("minilm-both hybrid", "words, expanded by MiniLM's table, and its tokens"),
        ("mpnet-granite-plain hybrid", "mpnet's and granite's: words with BM25 impacts"),
        ("mpnet-granite hybrid", "mpnet's and granite's: words, expanded by their table"),
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
    ("minilm-plain sparse", "words"),
    ("minilm sparse", "words, expanded by MiniLM's table"),
    ("minilm-tokens sparse", "MiniLM's tokens"),
    ("minilm-both sparse", "words, expanded by MiniLM's table, and its tokens"),
    ("mpnet-granite sparse", "words, expanded by the table of mpnet and granite-30m"),
    ("wordllama sparse", "words, expanded by static embeddings"),
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
    *((f"{name} {leg}", "bm25") for name in ("minilm", "mpnet-granite", "smollm2") for leg in ("sparse", "hybrid")),
    *((f"{name}-tuned hybrid", "bm25") for name in ("minilm", "mpnet-granite", "smollm2")),
    *((f"{name} hybrid", f"{name} sparse") for name in ("minilm", "mpnet-granite", "smollm2")),
    *((f"{name} sparse", f"{name} dense") for name in ("minilm", "mpnet-granite", "smollm2")),
    *((f"{name} dense", f"{name} full-dense") for name in ("minilm", "mpnet", "mpnet-granite", "smollm2")),
    *((f"{name} hybrid", f"{name} full-hybrid") for name in ("minilm", "mpnet-granite", "smollm2")),
    *((f"{name}-tuned hybrid", f"{name} hybrid") for name in ("minilm", "mpnet-granite", "smollm2")),
    *((f"{name} {leg}", "bm25") for name in ("lightretriever", "lightretriever-fitted") for leg in LIGHT),
    *((f"lightretriever full-{leg}", "bm25") for leg in ("dense", "hybrid")),
    *((f"minilm-{name} {leg}", "bm25") for name in ("plain", "tokens", "both") for leg in ("sparse", "hybrid")),
    *((f"mpnet-granite-plain {leg}", "bm25") for leg in ("sparse", "hybrid")),
    *((system, "bm25") for system, _ in MAIN if system != "bm25"),
    ("minilm sparse", "minilm-plain sparse"),
    ("minilm hybrid", "minilm-plain hybrid"),
    ("mpnet-granite hybrid", "mpnet-granite-plain hybrid"),
    ("minilm-both sparse", "minilm sparse"),
    ("minilm-both hybrid", "minilm hybrid"),
    ("minilm-general sparse", "minilm sparse"),
    ("minilm-general hybrid", "minilm hybrid"),
    ("minilm-general hybrid", "minilm-general sparse"),
    ("minilm-b0 sparse", "minilm sparse"),
    ("minilm-b0 hybrid", "minilm hybrid"),
    ("minilm-tokens sparse", "minilm-plain sparse"),
    ("minilm-tokens hybrid", "minilm-plain hybrid"),
    ("mpnet-granite sparse", "minilm sparse"),
    ("smollm2-given sparse", "bm25"),
    ("smollm2-given hybrid", "bm25"),
    ("smollm2-given hybrid", "smollm2-given sparse"),
    ("smollm2 hybrid", "smollm2-given hybrid"),
    ("smollm2 hybrid", "minilm hybrid"),
    ("mpnet-granite hybrid", "minilm hybrid"),
    ("mpnet-granite-tuned hybrid", "minilm-tuned hybrid"),
]
KEPT = [
    *((f"lightretriever {leg}", f"lightretriever full-{leg}") for leg in LIGHT),
    *((f"lightretriever-fitted {leg}", f"lightretriever full-{leg}") for leg in LIGHT),
    ("mpnet dense", "mpnet full-dense"),
    *(
        (f"{name} {leg}", f"{name} full-{leg}")
        for name in ("minilm", "mpnet-granite", "smollm2")
        for leg in ("dense", "hybrid")
    ),
    *((f"{name}-general {leg}", f"{name} {leg}") for name in ("minilm", "e5") for leg in LIGHT),
    *((f"{name} sparse", f"{name} hybrid") for name in ("minilm", "mpnet-granite", "smollm2")),
    ("smollm2-given hybrid", "smollm2 hybrid"),
    *((f"{name} {leg}", "bm25") for name in ("minilm", "mpnet-granite", "smollm2") for leg in ("sparse", "hybrid")),
    ("lightretriever hybrid", "bm25"),
    ("lightretriever-fitted hybrid", "bm25"),
]
"""Systems, and what they are to come close to, or to beat."""
