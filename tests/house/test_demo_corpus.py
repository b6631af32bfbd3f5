"""The demo's corpus: which packages are chosen, and the archive's facts about them."""

import gzip
import json
from pathlib import Path
from typing import Any

from demo import demo_corpus

PACKAGES = """\
Package: mpv
Version: 2
Section: video
Installed-Size: 4711
Description: player
 Section: a line of the description, not of the index

Package: quake
Section: contrib/games

Package: mpv
Version: 1
Section: old
Installed-Size: 1

Package: libmpv2
Section: libs
Installed-Size: 5
"""


def write(path: Path, *ids: str) -> Path:
    path.write_text("".join(json.dumps({"_id": name, "title": name, "text": f"About {name}."}) + "\n" for name in ids))
    return path


def chosen(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_programs_get_the_facts_that_the_archive_has(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.jsonl", "libmpv2", "mpv", "quake", "unknown")
    (tmp_path / "Packages").write_text(PACKAGES)
    output = tmp_path / "made" / "corpus.jsonl.gz"
    demo_corpus.main([str(corpus), str(output), "--packages", str(tmp_path / "Packages")])
    assert chosen(output) == [
        {"_id": "mpv", "title": "mpv: player", "text": "About mpv.", "section": "video", "installed_kb": 4711},
        {"_id": "quake", "title": "quake", "text": "About quake.", "section": "games"},
        {"_id": "unknown", "title": "unknown", "text": "About unknown."},
    ]


def test_without_an_index_there_are_no_facts(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.jsonl", "mpv", "quake-dev")
    demo_corpus.main([str(corpus), str(tmp_path / "a.gz")])
    demo_corpus.main([str(corpus), str(tmp_path / "b.gz")])
    assert chosen(tmp_path / "a.gz") == [{"_id": "mpv", "title": "mpv", "text": "About mpv."}]
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
