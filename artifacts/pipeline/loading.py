"""The edge to the libraries that read models: whatever they raise becomes one ModelError, and no text is longer than a
model reads.

transformers, peft, gguf and sentence-transformers document no list of errors: damaged files end in TypeError, struct
errors, UnpicklingError, or a panic of compiled code. RoBERTa, XLM-RoBERTa and MPNet count positions from the one behind
padding, so that 514 hold 512 tokens. Their settings say 514, and a folder may say nothing or more; a text beyond the
table ends the process of a GPU.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from lightretriever.artifacts.errors import BundleError, LightRetrieverError, ModelError
from lightretriever.artifacts.pipeline.recipe import MODULES_FILE
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer, is_of_library

_LONGEST = 600
_LFS = b"version https://git-lfs"
_ROUTES = "router_config.json"
_CLASS = "config_sentence_transformers.json"


@contextmanager
def loading(message: str, *sources: str | Path, remedy: str = "Fetch or save the model again.") -> Iterator[None]:
    """Raise ModelError, which begins with `message`, for an error of a library inside. It names the first damaged file
    below `sources`, where one is found."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, LightRetrieverError) or not is_of_library(error):
            raise
        reason = " ".join(f"{error}".split())[:_LONGEST] or "no reason given"
        damaged = next((fault for source in sources for fault in _damaged(Path(source))), None)
        if damaged is not None:
            raise ModelError(f"{message}: {damaged}", remedy="Fetch or save it again.") from error
        if "trust_remote_code" in reason:
            raise ModelError(
                f"{message}: it needs code of its own, which is never run.",
                remedy="Name a model that transformers and sentence-transformers read by themselves.",
            ) from error
        missing = [str(source) for source in sources if not Path(source).exists()]
        if missing and isinstance(error, OSError | ValueError):
            message = f"{message}: there is no folder {missing[0]} here, and as an id of Hugging Face it can't be read"
            remedy = "Correct the path, or fetch the model, which the hub names OWNER/NAME."
        raise ModelError(f"{message}: {type(error).__name__}: {reason.rstrip('.')}.", remedy=remedy) from error


def text_tokenizer(theirs: Any, path: str, *, lowercase: bool) -> tuple[TextTokenizer, bytes]:
    """A model's tokenizer of transformers, or of the library `tokenizers`, as ours, and the content of its
    tokenizer.json. Raises ModelError where it is no fast one."""
    backend = theirs if isinstance(theirs, Tokenizer) else getattr(theirs, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{path}: this model has no fast tokenizer ({type(theirs).__name__}).",
            remedy="Convert it to a tokenizer.json first; the query path runs on it.",
        )
    content = backend.to_str(pretty=True).encode()
    try:
        return TextTokenizer.from_bytes(content, name=f"{path}: tokenizer", lowercase=lowercase), content
    except BundleError as error:
        raise ModelError(error.message, remedy=error.remedy) from error


def check_vocabulary(rows: int, tokenizer: Tokenizer, framing: Collection[int | None], path: str) -> bool:
    """True if special tokens have ids beyond an embedding of `rows` rows, so that none may be read from a text. Raises
    ModelError where an ordinary token has such an id, or one that the model reads with every text (`framing`)."""
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    beyond = sorted((token_id, token) for token, token_id in vocabulary.items() if token_id >= rows)
    read = [entry for entry in beyond if entry[0] not in special or entry[0] in framing]
    if read:
        raise ModelError(
            f"{path}: the tokenizer has {len(read)} tokens beyond the {rows} rows of the model's embedding, such as "
            f"{read[0][1]!r} with the id {read[0][0]}.",
            remedy="Use the tokenizer the model was trained with.",
        )
    return bool(beyond)


def library_class(path: str) -> str | None:
    """The class of sentence-transformers that a folder was saved by, None where it doesn't say."""
    file = Path(path) / _CLASS
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return content.get("model_type") if isinstance(content, dict) else None


def route(model: Any, task: Literal["query", "document"]) -> list[Any]:
    """The modules of a sentence-transformers model that read a query, or a document: in an asymmetric model, which
    begins with a Router, those of its route."""
    first, *others = model
    routes = getattr(first, "sub_modules", {})
    return [*routes[task], *others] if task in routes else [first, *others]


def module_folders(folder: Path) -> list[Path]:
    """The folder of a sentence-transformers model and those of its modules (pooling, dense layers, routes, …)."""
    listed = folder / MODULES_FILE
    modules = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    folders = [folder, *(folder / module["path"] for module in modules)]
    for routed in [path / _ROUTES for path in folders if (path / _ROUTES).is_file()]:
        folders += [routed.parent / name for name in json.loads(routed.read_text(encoding="utf-8"))["types"]]
    return list(dict.fromkeys(folders))


def _damaged(source: Path) -> Iterator[str]:
    """The faults of a model's files: of a file itself, or of a folder and its modules' folders."""
    for file in [source, *sorted(source.glob("*")), *sorted(source.glob("*/*"))]:
        if file.is_file() and (reason := _reason(file)):
            yield f"{file} {reason}."


def _reason(file: Path) -> str:
    with file.open("rb") as opened:
        head = opened.read(len(_LFS))
    if not head:
        return "is empty"
    if head == _LFS:
        return "is a Git LFS pointer, not the file itself (`git lfs pull` fetches it)"
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, "pt"):
                return ""
        if file.suffix != ".json":
            return ""
        content = json.loads(file.read_bytes())
    except Exception as error:
        return f"can't be read: {error}"
    expected = list if file.name == MODULES_FILE else dict
    return "" if isinstance(content, expected) else f"is a JSON {type(content).__name__}, not a {expected.__name__}"


_TABLES: Final = ("position_embeddings", "embed_positions", "wpe")
"""Names of a learned table of positions in the architectures of transformers."""


def positions(model: torch.nn.Module) -> int | None:
    """How many tokens the tables of positions of a transformer have rows for; None if it has no such table."""
    sizes = [
        table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
        for name, table in model.named_modules()
        if isinstance(table, torch.nn.Embedding) and name.rpartition(".")[2] in _TABLES
    ]
    return min(sizes, default=None)


def cut_at_longest(path: str, *modules: Any) -> None:
    """Have modules of sentence-transformers, the first ones of their routes, cut texts at what they can read.

    A module with a table of positions reads one text of that length. Raises ModelError, which names the model's `path`
    and the length, if it fails.
    """
    for module in modules:
        if not hasattr(module, "auto_model") or (most := positions(module.auto_model)) is None:
            continue
        stated, tokenizer = module.max_seq_length, module.tokenizer
        longest = most if stated is None else min(int(stated), most)
        if longest != stated:
            module.max_seq_length = longest
        token = next(iter(tokenizer("a", add_special_tokens=False)["input_ids"]), tokenizer.unk_token_id or 0)
        ids = torch.full((1, longest), token, device=next(module.parameters()).device)
        try:
            with torch.inference_mode():
                module({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        except BaseException as error:
            if not is_of_library(error):
                raise
            raise ModelError(
                f"{path}: can't read a text of {longest} tokens, as long as it says it reads: {error}.",
                remedy="Set max_seq_length in its sentence_bert_config.json to what it can read.",
            ) from error


def longer_than(longest: int | None, module: Any, texts: Sequence[str]) -> list[bool]:
    """True if each text has more than `longest` tokens (None: no limit) for a module of sentence-transformers, special
    ones included."""
    if longest is None:
        return [False] * len(texts)
    return [len(ids) > longest for ids in module.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]]
