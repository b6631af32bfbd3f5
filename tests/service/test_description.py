"""The API against its own description, by schemathesis, at length. Of this, `make test` has a share in
`tests/faults/test_fuzz.py`; to collect this file takes a minute.
"""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from lightretriever.service.http.app import create_app

from tests.service.conftest import SETTINGS
from tests.service.test_openapi import CONFIG

# The description needs no bundle: none is opened before the application starts.
schema = schemathesis.openapi.from_dict(
    create_app(Path("no bundle"), SETTINGS).openapi(), config=schemathesis.Config.from_dict(CONFIG)
)


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_route_does_what_its_description_says(case: Any, url: str) -> None:
    case.call_and_validate(base_url=url)
