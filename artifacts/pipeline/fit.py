"""Fit a token table to texts: mean of rows ~ what the whole encoder makes of the text.

    q = normalise(mean_i E[t_i]),  y = the encoder's own vector of the same text,  d = frozen vectors of documents

    loss = cosine · (1 - q·y) + contrast · CE(q·y' / τ over the batch) + kl · KL(softmax(y·d / τ) ‖ softmax(q·d / τ))

Only the rows of E are learned, so this takes minutes on a CPU, whatever the size of the encoder. Judgments are never
read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy, embedding_bag, kl_div, log_softmax, normalize, softmax

from lightretriever.artifacts.corpus.beir import read_queries
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Float16Array, Float32Array, FloatArray, Int32Array, Int64Array
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.encode import encode_texts, model_rows
from lightretriever.artifacts.pipeline.encoded import encoded_corpus
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder
from lightretriever.artifacts.pipeline.model import software
from lightretriever.artifacts.pipeline.recipe import DistilTableRecipe, Recipe, TableTraining
from lightretriever.artifacts.pipeline.rows import ModelRows, Rows
from lightretriever.artifacts.pipeline.store import TextStore, text_digests
from lightretriever.artifacts.reports import ProgressBar
from lightretriever.artifacts.tokens.idf import TokenStatistics, count_tokens
from lightretriever.artifacts.tokens.tokenizer import sentences_of

_SAMPLED_DOCUMENTS = 1024
"""Documents over which teacher and student are compared in one step, drawn anew each time."""

_RANKED_DOCUMENTS = 20_000
"""Documents that are ranked to measure agreement, at most; the first of a seeded draw."""

_TOP = 10
_AT_ONCE = 256  # texts
_PART = 2048

Text = TypeVar("Text")


@dataclass(frozen=True)
class FitTexts:
    """The data a table is fitted to: the token ids of n texts, at least one each, as `bags`, and the encoder's own unit
    vectors of them, `targets` (n, H).

    The last `held_out` texts are not trained on. `documents` (N, H) are the frozen unit vectors of the corpus.
    """

    bags: Rows
    targets: FloatArray
    documents: FloatArray
    held_out: int

    @classmethod
    def of(
        cls,
        documents: Sequence[Int32Array],
        vectors: FloatArray,
        texts: Sequence[Int32Array],
        targets: FloatArray,
        settings: TableTraining,
    ) -> Self:
        """Documents by their token ids and `vectors` (n, H), and behind them other texts and their `targets` (m, H),
        both in a drawn order; a tenth of the texts is held out, at most, or else of the documents."""
        random = np.random.default_rng(settings.seed)
        read, asked = (
            random.permutation([row for row, ids in enumerate(bags) if len(ids)]).astype(np.int64)
            for bags in (documents, texts)
        )
        return cls(
            Rows.of([*(documents[row] for row in read), *(texts[row] for row in asked)]),
            np.concatenate([vectors[read], targets[asked]]),
            vectors if len(vectors) else targets,
            min(settings.held_out, len(asked) // 10 or len(read) // 10),
        )


@dataclass(frozen=True)
class Agreement:
    """How well the table agrees with the encoder on texts that were held out: mean cosine of the two vectors, and the
    share of the encoder's first ten documents that are among the table's first ten."""

    cosine: float
    overlap: float


def agreement_line(facts: Mapping[str, Any]) -> str:
    """`FittedTable.facts` for people."""
    change = "; ".join("{} {:.3f} -> {:.3f}".format(name, *facts[name]) for name in ("cosine", "overlap"))
    beside = "; general table {:.3f} and {:.3f}".format(*facts["general"]) if facts["general"] else ""
    if facts["kept"] == "general":
        beside += ", which is better, so that it is used: these texts are too few to fit a table to"
    return f"agreement with the encoder by epoch {facts['epoch']} of {facts['epochs']}: {change}{beside}"


@dataclass(frozen=True)
class FittedTable:
    """The rows (V, H) float32 of the best epoch, and the agreement before the first epoch and after each. `general` is
    that of the encoder's general table with the same texts, where there is one; if it is better, the rows are its."""

    rows: Float32Array
    epochs: list[Agreement]
    general: Agreement | None = None

    @property
    def best(self) -> int:
        """The epoch that was kept, the first of equals; 0 is the table that was begun with."""
        return max(range(len(self.epochs)), key=lambda epoch: (self.epochs[epoch].overlap, -epoch))

    @property
    def facts(self) -> dict[str, Any]:
        """How well the table agrees with the encoder: before the training, and after `epoch`, the best one. `kept` says
        whether the fitted table is used, or the general one, which agrees better."""
        first, kept, general = self.epochs[0], self.epochs[self.best], self.general
        beaten = general is not None and (general.overlap, general.cosine) > (kept.overlap, kept.cosine)
        return {
            "epoch": self.best,
            "epochs": len(self.epochs) - 1,
            "cosine": (first.cosine, kept.cosine),
            "overlap": (first.overlap, kept.overlap),
            "general": None if general is None else (general.cosine, general.overlap),
            "kept": "general" if beaten else "fitted",
        }


def distinct_rows(states: Float32Array, statistics: TokenStatistics) -> Float32Array:
    """Rows to begin with: E[t] = idf(t) · (s[t] - Σ_t p(t) s[t]), times what makes the mean length of those of the
    corpus' tokens 1.

    `states` s (V, H) float32 are those of single tokens, p(t) a token's share of the corpus' postings. What all texts
    have in common says nothing of any of them; rare tokens say most. A row of zeros, of an id without an embedding,
    stays.
    """
    share = statistics.frequencies / max(int(statistics.frequencies.sum()), 1)  # documents may have no token at all
    rows = (states - share @ states) * statistics.bm25_idf()[:, None]
    rows[~states.any(axis=1)] = 0
    lengths = np.linalg.norm(rows[np.flatnonzero(statistics.frequencies)], axis=1)
    scale = max(float(lengths.mean()), 1e-12) if lengths.size else 1.0
    return np.ascontiguousarray(rows / scale, dtype=np.float32)


def table_queries(rows: torch.Tensor, bags: Rows) -> torch.Tensor:
    """q = normalise(mean_i E[t_i]) of every bag: (n, H); `rows` is E (V, H). Differentiable, sparsely in E."""
    sparse = rows.requires_grad and torch.is_grad_enabled()
    tokens, starts = (torch.from_numpy(part.astype(np.int64)).to(rows.device) for part in (bags.values, bags.at[:-1]))
    return normalize(embedding_bag(tokens, rows, starts, mode="mean", sparse=sparse), dim=1)


def agreement(rows: torch.Tensor, bags: Rows, targets: torch.Tensor, documents: torch.Tensor) -> Agreement:
    """Compare E (V, H) with the encoder's vectors `targets` (n, H) of the same texts over `documents` (N, H)."""
    k = min(_TOP, len(documents))
    cosines, shared = 0.0, 0
    with torch.inference_mode():
        for part in torch.arange(len(bags)).split(_AT_ONCE):
            ours, theirs = table_queries(rows, bags.take(part.numpy())), targets[part.to(targets.device)].float()
            cosines += float((ours * theirs).sum())
            first, second = (torch.topk(each @ documents.T, k, dim=1).indices for each in (ours, theirs))
            shared += int((first[:, :, None] == second[:, None, :]).sum())
    return Agreement(cosines / len(bags), shared / (k * len(bags)))


def fit_table(
    initial: Float32Array,
    texts: FitTexts,
    settings: TableTraining,
    device: torch.device,
    *,
    general: Float32Array | None = None,
) -> FittedTable:
    """Train from the rows `initial` (V, H), on `device`. The rows `general` (V, H) are measured beside, and returned if
    they agree better on the held-out texts: a small corpus is too little to fit a table to.

    After every epoch the agreement on the held-out texts is measured, and the epoch with the best overlap is kept. The
    same inputs and seed give the same rows on the same machine and number of threads; rows of tokens that are in no
    text keep their initial values. Fewer texts than `batch_size` are one batch. Raises RecipeError where none is held
    out.
    """
    bags, targets, documents = texts.bags, texts.targets, texts.documents
    trained = len(bags) - texts.held_out
    if texts.held_out < 1:
        raise RecipeError(
            f"{len(bags)} texts to fit a token table to, of which none can be held out: a tenth is.",
            remedy="Give at least ten texts: a larger corpus, or with `distil` more queries or sentences: true.",
        )
    batch_size = min(settings.batch_size, trained)
    generator = torch.Generator().manual_seed(settings.seed)
    rows = torch.nn.Parameter(torch.from_numpy(initial.copy()).to(device))
    held = torch.arange(trained, len(bags))
    drawn = torch.randperm(len(documents), generator=generator)[:_RANKED_DOCUMENTS]
    judged = (bags.take(held.numpy()), _take(targets, held, device), _take(documents, drawn, device))
    epochs = [agreement(rows, *judged)]
    beside = None if general is None else agreement(torch.from_numpy(general).to(device), *judged)
    best = rows.detach().clone()
    optimizer = torch.optim.SparseAdam([rows], lr=settings.learning_rate)
    steps = settings.epochs * (trained // batch_size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=max(steps, 1))
    with ProgressBar("fit", total=steps * batch_size, unit="texts") as progress:
        for _ in range(settings.epochs):
            order = torch.randperm(trained, generator=generator)
            for batch in order.split(batch_size):
                if len(batch) < batch_size:
                    continue  # a smaller batch would weigh its texts more
                sample = torch.randint(len(documents), (_SAMPLED_DOCUMENTS,), generator=generator)
                optimizer.zero_grad()
                queries = table_queries(rows, bags.take(batch.numpy()))
                taught, compared = _take(targets, batch, device), _take(documents, sample, device)
                _loss(queries, taught, compared, settings).backward()
                optimizer.step()
                schedule.step()
                progress.advance(len(batch))
            epochs.append(agreement(rows, *judged))
            if FittedTable(initial, epochs).best == len(epochs) - 1:
                best = rows.detach().clone()
    fitted = FittedTable(best.cpu().numpy(), epochs, beside)
    return fitted if general is None or fitted.facts["kept"] == "fitted" else replace(fitted, rows=general)


def _loss(
    queries: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor, settings: TableTraining
) -> torch.Tensor:
    """The loss of a batch: `queries` and `targets` (b, H), sampled `documents` (n, H), all of length 1."""
    tau = settings.temperature
    loss = settings.cosine * (1 - (queries * targets).sum(dim=1)).mean()
    if settings.contrast:
        loss = loss + settings.contrast * cross_entropy(
            queries @ targets.T / tau, torch.arange(len(queries), device=queries.device)
        )
    if settings.kl:
        theirs, ours = softmax(targets @ documents.T / tau, dim=1), log_softmax(queries @ documents.T / tau, dim=1)
        loss = loss + settings.kl * kl_div(ours, theirs, reduction="batchmean")
    return loss


def _take(vectors: FloatArray, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Rows (b,) of vectors (n, H) of any float type, as float32 on `device`."""
    return torch.from_numpy(np.asarray(vectors[rows.numpy()], dtype=np.float32)).to(device)


@dataclass(frozen=True)
class DistilTexts:
    """Drawn documents as token ids, with their `vectors` (n, H), and `texts`: queries and sentences of the documents,
    each once. `keep` says that vectors of other texts are kept."""

    settings: DistilTableRecipe
    encoder: Encoder
    documents: list[Int32Array]
    vectors: Float16Array
    statistics: TokenStatistics
    texts: list[str]
    keep: bool

    @classmethod
    def of(cls, recipe: Recipe, settings: DistilTableRecipe, encoder: Encoder) -> Self:
        """Read the corpus, its vectors and the queries. Raises RecipeError where neither documents nor queries have a
        token that the encoder knows."""
        store, corpus = TextStore(recipe.work / "encode"), encoded_corpus(recipe)
        rows = np.sort(np.random.default_rng(settings.seed).permutation(len(corpus))[: settings.documents])
        vectors = store.rows(corpus.digests[rows]).dense
        texts = query_texts(settings.queries, settings.sample, settings.seed)
        if settings.sentences:
            limit = None if settings.sentences is True else settings.sentences
            texts += corpus_sentences(map(corpus.document, rows.tolist()), limit, settings.seed)
        texts = list(dict.fromkeys(texts))
        tokens = list[Int32Array]()
        for start in range(0, len(rows), _PART):
            read = [corpus.document(row).full_text for row in rows[start : start + _PART].tolist()]
            parts = encoder.tokenizer.encode_batch(read)
            tokens += (encoder.tokenizer.without_unknown(ids[: encoder.longest]) for ids in parts)
        if not any(map(len, tokens)) and not any(map(len, encoder.tokenizer.as_queries(texts))):
            raise RecipeError(
                f"None of the {len(tokens)} documents and {len(texts)} other texts has a token that {encoder.name} "
                "knows, so no token table can be fitted to them.",
                remedy="Name a model.path whose vocabulary has the corpus' script.",
            )
        statistics, keep = count_tokens(tokens, encoder.tokenizer.vocab_size), recipe.corpus.limit is not None
        return cls(settings, encoder, tokens, vectors, statistics, texts, keep)

    def of_task(self, instruction: str, teacher: Path) -> FitTexts:
        """Documents, sentences and queries. The encoder's vectors of the latter two are kept below `teacher`."""
        targets = teacher_vectors(self.encoder, self.texts, instruction, teacher, alone=True, keep=self.keep)
        bags = [ids[: self.encoder.longest] for ids in self.encoder.tokenizer.as_queries(self.texts)]
        return FitTexts.of(self.documents, self.vectors, bags, targets, self.settings)


def query_texts(paths: Sequence[Path], sample: int | None, seed: int) -> list[str]:
    """Queries of BEIR files or folders, each once: at most `sample` of each file (None: all), drawn by `seed`. Raises
    CorpusError for a file that can't be read."""
    texts: list[str] = []
    for number, path in enumerate(paths):
        texts += draw(list(dict.fromkeys(read_queries(path).values())), sample, (seed, number))
    return list(dict.fromkeys(texts))


def corpus_sentences(documents: Iterable[Document], limit: int | None, seed: int) -> list[str]:
    """Titles and sentences of a corpus, each once, in its order: at most `limit` (None: all), drawn by `seed`."""
    sentences: dict[str, None] = {}
    for document in documents:
        sentences |= dict.fromkeys(sentences_of(document.title, document.text))
    return draw(list(sentences), limit, (seed,))


def teacher_vectors(
    encoder: Encoder,
    texts: Sequence[str],
    instruction: str | None,
    folder: Path,
    *,
    alone: bool = False,
    keep: bool = False,
    label: str = "teacher",
) -> Float16Array:
    """Encode `texts` with the whole encoder, as queries behind `instruction` or, where that is None, as documents:
    (n, H) float16, L2-normalised before rounding.

    They are kept in `folder`, of other texts only with `keep`, so that a stopped run goes on where it was. With
    `alone`, on a CPU, each query is read by itself: its vector doesn't depend in its last bits on those beside it, and
    takes two to three times as long. Raises ResumeError when the folder was begun with another encoder or instruction.
    """
    apart = alone and encoder.device.type == "cpu"
    step = 1 if apart else _PART
    plan: dict[str, Any] = {
        "model": encoder.fingerprint,
        "instruction": instruction,
        "device": encoder.device.type,
        "alone": alone,
    }
    plan |= {"software": software(), "dimension": encoder.hidden_size, "shard_size": _PART}
    store, digests = TextStore.begin(folder, plan), text_digests(texts)
    with ProgressBar(label, total=len(texts), unit="texts") as progress:

        def encode(rows: Int64Array) -> ModelRows:
            new = [texts[row] for row in rows.tolist()]
            if instruction is None:
                batches = [encoder.encode_documents(new)]
            else:
                parts = (new[start : start + step] for start in range(0, len(new), step))
                batches = [encoder.encode_queries(part, instruction) for part in parts]
            dense = np.concatenate([batch.dense for batch in batches])
            return model_rows(new, Encoded(dense), [False] * len(new))

        encode_texts(store, digests, encode, progress, alone=apart)
    store.join(digests, keep=keep)
    return store.rows(digests).dense


def draw(texts: list[Text], limit: int | None, seed: tuple[int, ...]) -> list[Text]:
    """At most `limit` of the texts (None: all), drawn by `seed`, in their order."""
    if limit is None or len(texts) <= limit:
        return texts
    kept = np.sort(np.random.default_rng(seed).choice(len(texts), size=limit, replace=False))
    return [texts[index] for index in kept]
