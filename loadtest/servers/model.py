"""The service with a model in the query path: same indexes, same fusion, same HTTP, another query encoder.

    python -m lightretriever.loadtest.servers.model BUNDLE --model MODEL [--adapter ADAPTER] [--device cuda] --port 0

MODEL is the causal language model that read the documents (dense and sparse query by the model), or a folder of
sentence-transformers (dense query by the encoder, sparse query as the bundle has it). Requests that wait while the
model is busy are encoded together, up to `--batch`, and as many requests are worked on at once: it is served as well as
it can be. Settings are the service's.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.full import QueryModel
from lightretriever.loadtest.servers.encoders import ModelQueryEncoder, load_encoder
from lightretriever.loadtest.servers.thin import serve_engine
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.plan import Parts
from lightretriever.service.settings import load_settings

__all__ = ["main", "open_engine"]


def open_engine(bundle: Bundle, model: QueryModel, *, device: str, batch: int) -> SearchEngine:
    """The service's engine with the model as its query encoder. Raises LightRetrieverError."""
    settings = load_settings()
    settings = settings.model_copy(update={"search_threads": max(settings.threads(), batch)})
    parts = Parts.open(bundle, settings, hashed=False)
    try:
        encode = load_encoder(model, bundle, parts.encoder, device=device)
        parts = replace(parts, encoder=ModelQueryEncoder(parts.encoder, encode, batch))
        return SearchEngine(bundle, settings, parts)
    except BaseException:
        parts.close()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        configure_logging("info")
        model = QueryModel(given.model, given.adapter, given.bos_token)
        with open_engine(Bundle.open(given.bundle), model, device=given.device, batch=given.batch) as engine:
            what = f"{engine.bundle.manifest.name!r} with the model {Path(given.model).name}"
            serve_engine(engine, what, host=given.host, port=given.port)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The service with a model in the query path.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--model", required=True, help="language model or bi-encoder of the bundle's documents")
    parser.add_argument("--adapter", help="the language model's adapter")
    parser.add_argument("--bos-token", help="first token, as in the bundle's recipe")
    parser.add_argument("--device", default="auto", help="where the model runs (auto: CUDA if there is one)")
    parser.add_argument("--batch", type=int, default=16, help="most queries encoded together (16)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    return parser


if __name__ == "__main__":
    sys.exit(main())
