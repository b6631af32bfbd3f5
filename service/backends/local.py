"""The backends of a bundle on this machine: Faiss and Lucene."""

from concurrent.futures import ThreadPoolExecutor

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import start_jvm_to_search
from lightretriever.artifacts.sparse.spelling import Spelling
from lightretriever.service.backends.base import Backends, Leg
from lightretriever.service.backends.faiss import FaissDense
from lightretriever.service.backends.lucene import LuceneSparse
from lightretriever.service.schemas import LegName

__all__ = ["open_local"]


def open_local(bundle: Bundle, *, hashed: bool = True) -> Backends:
    """Open the indexes of a bundle. BundleError, JavaError.

    Unless `hashed`, checks the files' hashes first, while the JVM starts.
    """
    if not hashed:
        with ThreadPoolExecutor(1) as thread:
            hashes = thread.submit(bundle.check_hashes)
            start_jvm_to_search()
            hashes.result()
    start_jvm_to_search()
    index = bundle.sparse()
    try:
        language = bundle.manifest.sparse.language
        spelling = None if language is None else Spelling(index, language)
        available = spelling is not None and spelling.available
        return Backends(_legs(bundle, index), index, spellings=spelling if available else None)
    except BaseException:
        index.close()
        raise


def _legs(bundle: Bundle, index: ImpactIndex) -> dict[LegName, Leg]:
    legs: dict[LegName, Leg] = {} if bundle.manifest.dense is None else {"dense": FaissDense(bundle.dense())}
    legs["sparse"] = LuceneSparse(index)
    return legs
