"""The metrics of several processes, and what is left of those that ended."""

import fcntl
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import sleep

import pytest
from lightretriever.service.observability.metrics import METRICS_FOLDER
from lightretriever.service.observability.multiprocess import inherit, shared_text
from lightretriever.service.serving import workers
from lightretriever.service.settings import Settings

from tests.service.process import ROOT

WRITER = """
import os
from lightretriever.service.observability.metrics import Metrics
metrics = Metrics()
for route in ("/search", "/livez"):
    for status in (200, 400, 503):
        metrics.request(route, status).observe(0.01 * status)
metrics.errors.labels("not_ready").inc(3)
metrics.refresh()
print(os.getpid())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The metrics of a process that has ended, and of twenty that counted the same."""
    environment = {**os.environ, METRICS_FOLDER: str(tmp_path)}
    command = [sys.executable, "-c", WRITER]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    pid = done.stdout.strip()
    files = list(tmp_path.glob(f"*_{pid}.db"))
    assert {file.name.partition("_")[0] for file in files} == {"counter", "gauge", "histogram"}
    for number in range(20):
        for file in files:
            shutil.copy(file, file.with_name(file.name.replace(pid, f"{10**9 + number}")))
    for file in files:
        file.unlink()
    return tmp_path


def counted(folder: Path) -> list[str]:
    lines = shared_text(folder).decode().splitlines()
    return sorted(line for line in lines if not line.startswith(("#", "process_")))


def ended(folder: Path) -> None:
    for number in range(20):
        while not inherit(folder, 10**9 + number):
            sleep(0.001)  # somebody reads


def test_what_processes_counted_outlives_them_in_two_files(folder: Path) -> None:
    before = counted(folder)
    assert 'lightretriever_errors_total{kind="not_ready"} 60.0' in before
    assert 'lightretriever_request_seconds_count{route="/search",status="200"} 20.0' in before
    ended(folder)
    states = tuple(f"lightretriever_{name}" for name in ("documents", "ready", "requests_in_flight"))  # end with it
    assert counted(folder) == [line for line in before if not line.startswith(states)]
    assert {file.name for file in folder.glob("*.db")} == {"counter_ended.db", "histogram_ended.db"}


def test_who_reads_meanwhile_sees_all_of_it_once(folder: Path) -> None:
    before = [line for line in counted(folder) if "request_seconds" in line]
    assert before
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(ended, folder)
        while not ending.done():
            assert [line for line in counted(folder) if "request_seconds" in line] == before
        ending.result()


def test_nobody_is_waited_for(folder: Path) -> None:
    before = counted(folder)
    with (folder / "inheriting").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as who reads, and hangs
        assert not inherit(folder, 10**9)
    assert inherit(folder, 10**9)
    assert [line for line in counted(folder) if "_total" in line] == [line for line in before if "_total" in line]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("iii", 64, 0, 2**30) + b" " * 100,
        struct.pack("iii", 44, 0, 8) + b"not json" + b" " * 4 + bytes(16),
        struct.pack("iii", 44, 0, 8) + b"\xff" * 8 + b" " * 4 + bytes(16),
        struct.pack("iii", 44, 0, 8) + b"cut",
    ],
    ids=["empty", "long", "no key", "no text", "cut"],
)
def test_a_damaged_file_is_told_of_and_removed(folder: Path, content: bytes) -> None:
    (folder / f"counter_{10**9}.db").write_bytes(content)
    with pytest.raises((ValueError, RuntimeError, struct.error)):
        inherit(folder, 10**9)
    assert inherit(folder, 10**9)
    ended(folder)
    assert 'lightretriever_errors_total{kind="not_ready"} 57.0' in counted(folder)


def test_the_parent_takes_what_is_left_of_a_worker_with_a_damaged_file(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / f"counter_{10**9}.db").write_bytes(b"")
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        supervisor = workers._Supervisor(workers.Job(folder, Settings(), listener, "here"), 2, folder)
    supervisor._ended = [10**9]
    for _ in range(2):
        supervisor._inherit()
    assert "what a worker counted is lost" in caplog.text
    assert supervisor._ended == []
    assert not list(folder.glob(f"*_{10**9}.db"))


def test_what_a_full_disk_does_not_take_stays_where_it_is(folder: Path) -> None:
    before = [line for line in counted(folder) if "_total" in line]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            inherit(folder, 10**9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [line for line in counted(folder) if "_total" in line] == before
    ended(folder)
    assert [line for line in counted(folder) if "_total" in line] == before
