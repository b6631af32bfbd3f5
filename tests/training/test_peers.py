"""The processes of a run, of which one fails."""

import threading
from typing import Any

import pytest

from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.training.peers import Peers
from tests.support.waiting import free_port


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a launcher that started this process alone."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "RANK": 0, "WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("fails", [False, True])
def test_no_thread_is_left_at_the_end(fails: bool) -> None:
    """One that is in the store when the interpreter ends aborts the process."""
    before, said = threading.active_count(), list[Any]()
    with Peers(said.append) as peers:
        assert threading.active_count() > before
        if fails:
            peers.tell(ModelError("too small"))
    assert threading.active_count() == before
    assert not said
