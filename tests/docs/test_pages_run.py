"""The tutorial and the how-tos, done as they are written, without a network: a tiny real model stands under the name of
the one that they name, in a cache laid out like Hugging Face's.
"""

import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from lightretriever.artifacts.bundle.reader import Bundle
from tests.docs.pages import ROOT, Block, blocks
from tests.support.biencoder import save_biencoder
from tests.support.models import save_model

_PORT = 8080
_PATIENCE_S = 600


class Terminal:
    """Runs the blocks of pages, top to bottom, in a folder that stands for the checkout.

    A block of `sh` is run as it is written; only where another program has the port 8080, another port stands in its
    place. `lightretriever serve` goes on in a terminal of its own until `stop`. A block of `text` after it has lines
    that it said, numbers apart, and one of `json` has keys of its answer. Other blocks are for reading.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = _free_port()
        self.said = ""
        self._environment = {**os.environ, **environment, "no_proxy": "127.0.0.1"}
        self._environment["LIGHTRETRIEVER_PORT"] = str(self.port)  # for commands that name none
        self._activated = ""
        self._server: subprocess.Popen[str] | None = None

    def follow(self, page: Path, *, without: frozenset[str] = frozenset()) -> None:
        """Do all that a page says, but the blocks of `without`."""
        for block in blocks(page):
            if block.language == "sh" and block.text not in without:
                self.run(block.text)
            elif block.language in ("text", "json"):
                differences = self.compare(block)
                assert differences == [], f"{page.name} says\n{block.text}\nbut it was\n{self.said}"

    def run(self, script: str) -> None:
        """Run the commands of a block, or start a service; what they print is then `said`."""
        if ". .venv/bin/activate\n" in script:
            self._activated = ". .venv/bin/activate\n"
        command = ["bash", "-c", f"set -e\n{self._activated}{script.replace(str(_PORT), str(self.port))}"]
        if script.startswith("lightretriever serve "):
            self._start(command)
            return
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        self.said = done.stdout
        assert done.returncode == 0, f"{script}\n{done.stdout}"

    def compare(self, block: Block) -> list[str]:
        """What the block has, and was not said."""
        if block.language == "json":
            shown, answer = json.loads(block.text), json.loads(self.said)
            return sorted(keys_of(shown) - keys_of(answer))
        said = set(map(_without_numbers, self.said.splitlines()))
        return [line for line in block.text.splitlines() if _without_numbers(line) not in said]

    def stop(self) -> int:
        """Press Ctrl-C where the service runs, and wait for its end: its exit status."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGINT)
        return self._server.wait(_PATIENCE_S)

    def _start(self, command: list[str]) -> None:
        self._server = subprocess.Popen(
            command, cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._server.stdout is not None
        self.said = self._server.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            if self._server.poll() is None:
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()


def keys_of(value: Any, place: str = "answer") -> set[str]:
    """The keys of JSON at all depths."""
    parts = [(f"{place}.{name}", part) for name, part in value.items()] if isinstance(value, dict) else []
    parts += [(f"{place}[]", part) for part in value] if isinstance(value, list) else []
    return {place}.union(*(keys_of(part, name) for name, part in parts))


def _without_numbers(line: str) -> str:
    return re.sub(r"\d[\d.,]*", "N", line)


def _free_port() -> int:
    """8080, as on the pages, or another port where that one is taken."""
    for port in (_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise RuntimeError("there is no free port")


DOCS = ROOT / "docs"
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
LANGUAGE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
INSTALL = "deploy/install/install pipeline\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hugging Face's cache after a download of the models that the pages name."""
    home = tmp_path_factory.mktemp("huggingface")
    save_biencoder(new_snapshot(home, ENCODER))
    save_model(new_snapshot(home, LANGUAGE_MODEL), "llama")
    return home


def snapshot_of(home: Path, name: str) -> Path:
    return home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / ("0" * 40)


def new_snapshot(home: Path, name: str) -> Path:
    """Lay out the cache for a model whose files are still to come."""
    place = snapshot_of(home, name)
    reference = place.parents[1] / "refs" / "main"
    reference.parent.mkdir(parents=True)
    reference.write_text(place.name)
    return place


@pytest.fixture
def terminal(tmp_path: Path, hub: Path) -> Iterator[Terminal]:
    """In a folder that has what the pages take from the checkout."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("results", "*.png"))
    with Terminal(tmp_path, {"HF_HOME": str(hub), "LIGHTRETRIEVER_DEADLINE_MS": "60000"}) as terminal:
        yield terminal


@pytest.mark.slow
def test_the_tutorial(terminal: Terminal) -> None:
    terminal.follow(DOCS / "tutorial.md", without=frozenset({INSTALL}))
    answer = json.loads(terminal.said)  # of the last command
    assert answer["hits"][0]["fields"]["path"]
    assert terminal.stop() == 0
    bundle = Bundle.open(terminal.folder / "runs" / "notes" / "bundle")
    assert (bundle.manifest.documents, bundle.manifest.model.name) == (len(corpus(terminal)), "all-MiniLM-L6-v2")
    assert {"limits.md#1", "decisions.md#1"} <= {line["_id"] for line in corpus(terminal)}
    assert "tea.md" in {line["_id"] for line in corpus(terminal)}


def corpus(terminal: Terminal) -> list[dict[str, Any]]:
    content = gzip.decompress((terminal.folder / "runs" / "notes" / "corpus.jsonl.gz").read_bytes())
    return [json.loads(line) for line in content.splitlines()]


@pytest.mark.slow
def test_corpus_filters_and_vectors_one_after_the_other(terminal: Terminal) -> None:
    terminal.follow(DOCS / "howto" / "own-corpus.md")
    terminal.follow(DOCS / "howto" / "import.md")
    wait_for_documents(terminal, 13)
    terminal.follow(DOCS / "howto" / "changed-corpus.md")
    terminal.follow(DOCS / "howto" / "filters.md")
    assert "{'category': [FacetCount(value='kitchen', count=4), " in terminal.said
    terminal.follow(DOCS / "howto" / "ranking.md")
    assert "kitchen Kettle with a thermometer 5\n" in terminal.said
    terminal.follow(DOCS / "howto" / "typing.md")
    assert "searched for shaprened knife - meant sharpened knife - or ['shaprened knife']\n" in terminal.said
    assert terminal.stop() == 0
    terminal.follow(DOCS / "howto" / "own-vectors.md")
    assert "runs/shop/bundle-vectors: sound, 13 documents, " in terminal.said
    bundle = Bundle.open(terminal.folder / "runs" / "shop" / "bundle-vectors")
    assert bundle.manifest.documents == 13
    terminal.follow(DOCS / "howto" / "export.md")
    assert len(re.findall(r"^-?[01]\.\d{3} [A-Z]-\d+$", terminal.said, flags=re.MULTILINE)) == 3
    terminal.follow(DOCS / "howto" / "head-queries.md")
    head = Bundle.open(terminal.folder / "runs" / "shop" / "bundle-head").head("search")
    assert head is not None
    found = [head.find(text) is not None for text in ("HOT  water", "light for a tent", "something to sit on")]
    assert found == [True, True, False]


@pytest.mark.slow
def test_the_language_model(terminal: Terminal, hub: Path) -> None:
    save_adapter(snapshot_of(hub, LANGUAGE_MODEL), terminal.folder / "recipes" / "adapters" / "smollm2-135m")
    table_to_corpus = next(block.text for block in blocks(DOCS / "howto" / "own-corpus.md") if block.language == "sh")
    terminal.run(table_to_corpus)
    terminal.follow(DOCS / "howto" / "own-llm.md")
    bundles = {name: Bundle.open(terminal.folder / "runs" / "shop" / name) for name in ("bundle-llm", "bundle-own")}
    for (name, bundle), weights in zip(bundles.items(), ("count", "idf_count"), strict=True):
        assert (bundle.manifest.documents, bundle.manifest.sparse.query_weights) == (12, weights), name
    adapters = [bundle.manifest.model.adapter for bundle in bundles.values()]
    assert adapters == ["smollm2-135m", "adapter"]


def save_adapter(model: Path, folder: Path) -> None:
    """An adapter that fits the tiny model, in place of the one in the repository, which does not."""
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(str(folder))


def wait_for_documents(terminal: Terminal, count: int) -> None:
    """Until the running service has taken over the bundle with so many documents."""
    end = time.monotonic() + 300
    while True:
        with urlopen(f"http://127.0.0.1:{terminal.port}/info") as answer:
            found = json.load(answer)["bundle"]["documents"]
        if found == count:
            return
        assert time.monotonic() < end, f"{found} documents are served"
        time.sleep(1)
