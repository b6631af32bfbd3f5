"""The program that measures plain searches beside heavy clients, on a tiny bundle."""

import json
from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.cost import LIGHT, cost_of_batch, cost_of_embeddings, cost_of_search
from lightretriever.service.schemas import BatchRequest, EmbeddingsRequest, SearchRequest
from lightretriever.service.settings import Settings
from research.pages.run_tables import fairness_table
from research.speed import fairness


def test_heavy_requests_are_heavy() -> None:
    settings = Settings(max_query_chars=1000)  # a tenth of the default: longer queries only cost more
    info = {"limits": settings.model_dump(), "filters": {"year": "number"}}
    costs = {
        "/search": lambda body: cost_of_search(SearchRequest.model_validate_json(body), settings),
        "/search/batch": lambda body: cost_of_batch(BatchRequest.model_validate_json(body).searches, settings),
        "/v1/embeddings": lambda body: cost_of_embeddings(EmbeddingsRequest.model_validate_json(body), settings),
    }
    for name, requests in fairness.heavy_requests(info, ["play music"]).items():
        assert len(set(requests)) > 1, name
        assert all(costs[path](body) > LIGHT for path, body in requests), name
        assert all(len(body) < settings.max_body_bytes for _, body in requests), name


@pytest.mark.slow
def test_one_command_measures_and_a_table_shows_it(
    tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "fairness.json"
    assert fairness.main([str(tiny_bundle.path), "--seconds", "0.2", "--results", str(results)]) == 0
    run = json.loads(results.read_text("utf-8"))
    assert json.loads(capsys.readouterr().out)["alone"] == run["alone"]
    assert set(run["alone"]["statuses"]) == {"200"}
    assert run["alone"]["p99_ms"] >= run["alone"]["p50_ms"] > 0
    assert len(run["beside"]) == 22
    assert set(run["beside"][0]["first"]) == {"200"}
    (table,) = fairness_table(results)
    assert "| 64 long texts to encode; 64 long searches at once |" in table
