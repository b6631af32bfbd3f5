"""A client that was used before a fork: parent and child have connections of their own, under load."""

import subprocess
import sys

from tests.service.process import ROOT

BEGINNING = """
import asyncio, os, sys, threading
from multiprocessing import get_context
from lightretriever.service.client import AnswerError, AsyncSearchClient, ClientError, SearchClient

url = sys.argv[1]
with SearchClient(url, timeout_s=120) as other:
    names = [hit.id for hit in other.search("music", k=15).hits]

def wrong(client, first):
    "The ids whose answer was another document's."
    return [name for name in (names[first:] + names[:first]) * 10 if client.document(name).id != name]
"""

POOL = """
client = SearchClient(url, timeout_s=120)
answers = []
threads = [threading.Thread(target=lambda first=first: answers.extend(wrong(client, first))) for first in range(4)]
[thread.start() for thread in threads]  # they hold connections and locks while the pool forks
def ask(first):
    return wrong(client, first)
def refused(name):
    client.document(name)
with get_context("fork").Pool(4) as pool:
    print(pool.map(ask, range(8), chunksize=2), answers)
    try:
        pool.apply(refused, ("nope",))
    except AnswerError as error:
        print(error.status, error.kind, error.request_id != "", error)
[thread.join() for thread in threads]
print(answers, wrong(client, 0))
client.close()
"""

ASYNC = """
def run(code):
    child = os.fork()
    if child == 0:
        try:
            print(asyncio.run(code()), flush=True)
        finally:
            os._exit(0)
    return child

async def ask():
    return [name for name in names * 10 if (await client.document(name)).id != name]

client = AsyncSearchClient(url, timeout_s=120)
with asyncio.Runner() as runner:
    print(runner.run(ask()))
    children = [run(ask) for _ in range(3)]
    print(runner.run(ask()))
    [os.waitpid(child, 0) for child in children]
    runner.run(client.aclose())
"""

CLOSED = """
client = SearchClient(url, timeout_s=120)
def ask():
    try:
        return client.document(names[0]).id == names[0]
    except ClientError as error:
        return error
child = os.fork()
if child == 0:
    try:
        with client:  # the end of the block closes the child's connections alone
            print(ask(), flush=True)
        print(ask(), flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
print(ask())
client.close()
print(ask())
"""


def run(script: str, url: str) -> list[str]:
    """Run a script in a process without a JVM, which can't be forked; return the lines of its output."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGINNING + script, url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_pool_of_forked_processes_gets_its_own_answers(url: str) -> None:
    answers, refused, later = run(POOL, url)
    assert (answers, later) == (f"{[[]] * 8} []", "[] []")
    assert refused.startswith("404 document_not_found True No document has the id 'nope'")


def test_so_do_event_loops_of_forked_processes(url: str) -> None:
    assert run(ASYNC, url) == ["[]"] * 5


def test_a_closed_client_stays_closed_in_its_own_process(url: str) -> None:
    closed = "The client is closed. Make a new one, or close it later."
    assert run(CLOSED, url) == ["True", closed, "True", closed]
