"""matched.py on two tiny bundles: shares of levels by bundle, and errors for bundles without thresholds."""

import json
from pathlib import Path

import pytest

from research.quality import matched
from tests.support.judged import write_judged
from tests.support.meaning import make_meaningful_bundle
from tests.support.tiny import make_tiny_bundle


def collection(folder: Path, **queries: str) -> Path:
    """A collection whose queries have one relevant document each."""
    return write_judged(folder, queries, {document: {document.replace("_", "-"): 1} for document in queries})


def test_it_records_how_often_each_level_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make_meaningful_bundle(tmp_path / "hobbies").path
    own = collection(
        tmp_path / "own", doc_0="mend the punctured tyre of a bicycle", doc_3="harvest honey in summer on warm days"
    )
    others = collection(tmp_path / "others", doc_1="bababa cefono tesagu", doc_2="misaru dinote kaleba")
    given = [f"hobbies={bundle}={own}", f"nonsense={bundle}={others}"]
    assert matched.main([str(tmp_path / "result.json"), *given]) == 0
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["environment"]["machine"]
    found = content["bundles"]
    for mode in ("dense", "hybrid"):
        assert found["hobbies"]["own"][mode] == {"strong": 1.0, "weak": 0.0, "none": 0.0}
        assert found["hobbies"]["removed"][mode]["strong"] == 0.0
        assert found["nonsense"]["others"][mode]["strong"] == 1.0
    assert found["hobbies"]["others"]["hybrid"] == {"strong": 0.0, "weak": 0.0, "none": 1.0}
    assert found["hobbies"]["thresholds"]["queries"] == 1000
    tiny = make_tiny_bundle(tmp_path / "tiny", documents=20).path
    assert matched.main([str(tmp_path / "none.json"), f"tiny={tiny}={own}", given[1]]) == 2
    assert "the bundle has no thresholds" in capsys.readouterr().err
