"""recipes/matched.py on two tiny bundles: shares of bands by bundle, and errors for bundles without thresholds."""

import json
from pathlib import Path

import pytest

from recipes import matched
from tests.support.meaning import make_meaningful_bundle
from tests.support.tiny import make_tiny_bundle


def queries(file: Path, *texts: str) -> Path:
    file.write_text("".join(json.dumps({"_id": str(i), "text": text}) + "\n" for i, text in enumerate(texts)))
    return file


def test_it_records_how_often_each_band_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make_meaningful_bundle(tmp_path / "hobbies").path
    own = queries(
        tmp_path / "own.jsonl", "mend the punctured tyre of a bicycle", "harvest honey in summer on warm days"
    )
    others = queries(tmp_path / "others.jsonl", "bababa cefono tesagu", "misaru dinote kaleba")
    given = [f"hobbies={bundle}={own}", f"nonsense={bundle}={others}"]
    assert matched.main([str(tmp_path / "result.json"), *given]) == 0
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["hobbies"]["own"]["none"] == found["nonsense"]["others"]["none"] == 0.0
    assert found["hobbies"]["others"] == {"strong": 0.0, "weak": 0.0, "none": 1.0}
    assert found["hobbies"]["thresholds"]["queries"] == 1000
    tiny = make_tiny_bundle(tmp_path / "tiny", documents=20).path
    assert matched.main([str(tmp_path / "none.json"), f"tiny={tiny}={own}", given[1]]) == 2
    assert "its tokenizer has too few words for thresholds" in capsys.readouterr().err
