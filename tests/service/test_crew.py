"""The threads that work: as many as may be, none for nothing, and another one for one that is held."""

import gc
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import sleep

import pytest
from lightretriever.service.execution.crew import Crew


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{name}-")]


def hold(crew: Crew, gate: threading.Event, count: int) -> list[threading.Thread]:
    """Have so many threads hold until the gate opens; give them."""
    held: list[threading.Thread] = []
    begun = threading.Semaphore(0)

    def work() -> None:
        held.append(threading.current_thread())
        begun.release()
        gate.wait()

    for _ in range(count):
        crew.put(work)
    for _ in range(count):
        assert begun.acquire(timeout=30)
    return held


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_threads_start_when_needed_and_no_more_than_may(gate: threading.Event) -> None:
    crew = Crew("bounded", 3)
    assert threads_of("bounded") == []
    hold(crew, gate, 3)
    done = threading.Semaphore(0)
    for _ in range(10):
        crew.put(done.release)
    assert not done.acquire(timeout=0.05)
    assert len(threads_of("bounded")) == 3
    gate.set()
    for _ in range(10):
        assert done.acquire(timeout=30)
    assert crew.close()
    assert threads_of("bounded") == []


def test_only_an_idle_thread_is_lent(gate: threading.Event) -> None:
    crew = Crew("lent", 2)
    done = threading.Semaphore(0)
    hold(crew, gate, 1)
    assert crew.lend(done.release)  # one may still be started
    assert done.acquire(timeout=30)
    hold(crew, gate, 1)
    assert not crew.lend(gate.wait)
    gate.set()
    assert crew.close()
    assert not crew.lend(gate.wait)


def test_who_fell_idle_last_is_woken_first() -> None:
    crew = Crew("last", 2)
    gates = [threading.Event(), threading.Event()]
    first, second = hold(crew, gates[0], 1), hold(crew, gates[1], 1)
    worked: list[threading.Thread] = []
    for idle, gate in enumerate(gates, 1):
        gate.set()
        while crew._idle < idle:
            sleep(0.001)
        sleep(0.1)
    done = threading.Event()

    def work() -> None:
        worked.append(threading.current_thread())
        done.set()

    crew.put(work)
    assert done.wait(30)
    assert worked == second != first
    crew.close()


def test_a_held_thread_is_replaced_and_ends_when_it_can(gate: threading.Event) -> None:
    crew = Crew("held", 1)
    [held] = hold(crew, gate, 1)
    done = threading.Event()
    crew.put(done.set)
    assert not done.wait(0.05)
    crew.replace(held)
    assert done.wait(30)
    assert not crew.close(timeout=0.05)
    gate.set()
    held.join(30)
    assert crew.close()


def test_a_hired_thread_begins_at_once_and_ends_with_its_work(gate: threading.Event) -> None:
    crew = Crew("hired", 1)
    hold(crew, gate, 1)
    hired: list[threading.Thread] = []
    crew.hire(lambda: hired.append(threading.current_thread()))
    while not hired:
        sleep(0.001)
    hired[0].join(30)
    assert not hired[0].is_alive()
    assert len(threads_of("hired")) == 1


def test_work_that_fails_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    crew = Crew("failing", 1)
    done = threading.Event()
    crew.put(lambda: 1 // 0)
    crew.put(done.set)
    assert done.wait(30)
    assert "ZeroDivisionError" in caplog.text
    assert crew.close()


def test_closing_finishes_what_waits_and_refuses_the_rest() -> None:
    crew = Crew("closing", 1)
    made: list[int] = []
    for number in range(20):
        crew.put(partial(made.append, number))
    assert crew.close()
    assert made == list(range(20))
    with pytest.raises(RuntimeError, match="closed"):
        crew.put(made.clear)


def test_an_idle_thread_looks_after_sockets_and_does_what_comes_of_it() -> None:
    crew = Crew("watching", 2)
    ours, theirs = socket.socketpair()
    done = threading.Semaphore(0)
    seen: list[tuple[bytes, threading.Thread]] = []
    worked: list[threading.Thread] = []

    def work() -> None:
        worked.append(threading.current_thread())
        done.release()

    def ready(left: bool) -> None:
        seen.append((b"" if left else ours.recv(100), threading.current_thread()))
        if not left:
            crew.put(work)

    with ours, theirs:
        crew.put(done.release)
        assert done.acquire(timeout=30)
        crew.watch(ours.fileno(), ready)
        for number in range(100):
            theirs.send(b"%d" % number)
            assert done.acquire(timeout=30)
            assert seen[-1][0] == b"%d" % number
            assert seen[-1][1] is worked[-1] is not threading.current_thread()
        crew.unwatch(ours.fileno())
        theirs.send(b"more")
        crew.put(done.release)
        assert done.acquire(timeout=30)
        assert len(seen) == 100
        crew.watch(ours.fileno(), ready)  # it has something to read already
        assert done.acquire(timeout=30)
        assert crew.close()
        assert [data for data, _ in seen[100:]] == [b"more", b""]


def test_work_from_all_sides_is_done(gate: threading.Event) -> None:
    """Whoever hears a call that was meant for another one passes it on."""
    crew = Crew("all", 3)
    pairs = [socket.socketpair() for _ in range(8)]
    done = threading.Semaphore(0)

    def reader(ours: socket.socket) -> Callable[[bool], None]:
        def ready(left: bool) -> None:
            if not left:
                for _ in ours.recv(100):
                    crew.put(done.release)

        return ready

    for ours, _ in pairs:
        crew.watch(ours.fileno(), reader(ours))
    crew.put(done.release)
    assert done.acquire(timeout=30)
    for _ in range(300):
        for _, theirs in pairs:
            theirs.send(b"x")
            crew.put(done.release)
            crew.look_if_late()
        for _ in range(2 * len(pairs)):
            assert done.acquire(timeout=30)
    assert crew.close()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_a_thread_that_is_replaced_when_it_is_idle_again_keeps_no_call(gate: threading.Event) -> None:
    """The call was late, its thread is idle by now, and hears what is meant for the one in its place."""
    for _ in range(20):
        crew = Crew("late", 1)
        [thread] = hold(crew, gate, 1)
        gate.set()
        while not crew._idle:
            sleep(0.001)
        crew.replace(thread)
        done = threading.Event()
        crew.put(done.set)
        assert done.wait(30)
        assert crew.close()
        gate.clear()


def test_who_was_replaced_when_idle_passes_on_the_end(gate: threading.Event) -> None:
    crew = Crew("passing", 2)
    first, _ = hold(crew, gate, 2)
    gate.set()
    while crew._idle < 2:
        sleep(0.001)
    crew.replace(first)
    assert crew.close(timeout=30)
    assert threads_of("passing") == []
    assert crew.close()


def test_a_look_takes_all_sockets_that_have_something(gate: threading.Event) -> None:
    crew = Crew("many", 1)
    hold(crew, gate, 1)
    pairs = [socket.socketpair() for _ in range(50)]
    seen: list[int] = []
    for number, (ours, _) in enumerate(pairs):
        crew.watch(ours.fileno(), partial(lambda number, left: seen.append(number), number))
    for _, theirs in pairs:
        theirs.send(b"x")
    while not seen:
        sleep(0.06)
        crew.look_if_late()
    assert sorted(seen) == list(range(50))
    for ours, theirs in pairs:
        crew.unwatch(ours.fileno())
        ours.close()
        theirs.close()


class Restless:
    """Sockets that have something to read again as soon as it was read, as those of clients that don't wait."""

    def __init__(self, crew: Crew, count: int, seconds: float = 0.0) -> None:
        self._crew, self._seconds = crew, seconds
        self._pairs = [socket.socketpair() for _ in range(count)]
        self._over = False

    def __enter__(self) -> None:
        for ours, theirs in self._pairs:
            ours.setblocking(False)
            self._crew.watch(ours.fileno(), partial(self._answer, ours, theirs))
            theirs.send(b"x")

    def __exit__(self, *_: object) -> None:
        self._over = True
        for ours, theirs in self._pairs:
            self._crew.unwatch(ours.fileno())
            ours.close()
            theirs.close()

    def _answer(self, ours: socket.socket, theirs: socket.socket, left: bool) -> None:
        with suppress(OSError):
            if ours.recv(9) and not self._over:
                sleep(self._seconds)
                theirs.send(b"x")


def test_a_look_ends_while_clients_ask_again_and_again(gate: threading.Event) -> None:
    crew = Crew("endless", 1)
    hold(crew, gate, 1)
    with Restless(crew, 40):
        sleep(0.06)
        looking = threading.Thread(target=crew.look_if_late)
        looking.start()
        looking.join(30)
        assert not looking.is_alive()


def test_work_is_done_while_clients_ask_again_and_again() -> None:
    crew = Crew("starving", 1)
    done = threading.Semaphore(0)
    crew.put(done.release)
    assert done.acquire(timeout=30)
    with Restless(crew, 40, seconds=0.0001):
        for _ in range(50):
            crew.put(done.release)
        for _ in range(50):
            assert done.acquire(timeout=30)
    assert crew.close()


def test_without_new_threads_the_others_do_what_there_is(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = Crew("scarce", 2)
    first, _ = hold(crew, gate, 2)
    done = threading.Semaphore(0)
    with monkeypatch.context() as patch:
        patch.setattr("lightretriever.service.execution.crew.Thread.start", no_thread)
        crew.hire(done.release)
        crew.put(done.release)
        crew.replace(first)
    assert not done.acquire(timeout=0.05)
    gate.set()
    for _ in range(2):
        assert done.acquire(timeout=30)
    assert crew.close()


def test_an_idle_thread_does_what_no_new_one_can(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew("idle", 1)
    hold(crew, gate, 1)
    gate.set()
    while not crew._idle:
        sleep(0.001)
    done = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr("lightretriever.service.execution.crew.Thread.start", no_thread)
        crew.hire(done.set)
    assert done.wait(30)
    assert crew.close()


def test_somebody_looks_while_all_threads_are_held(gate: threading.Event) -> None:
    crew = Crew("busy", 1)
    ours, theirs = socket.socketpair()
    seen: list[threading.Thread] = []
    with ours, theirs:
        hold(crew, gate, 1)
        crew.watch(ours.fileno(), lambda left: seen.append(threading.current_thread()))
        theirs.send(b"x")
        crew.look_if_late()
        while not seen:  # only if nobody has looked for some time
            sleep(0.01)
            crew.look_if_late()
        assert seen == [threading.current_thread()]
        crew.unwatch(ours.fileno())


class Thing:
    def work(self) -> None:
        """Nothing."""


def test_nothing_of_the_work_outlives_it() -> None:
    crew = Crew("forgetting", 1)
    thing = Thing()
    gone = weakref.ref(thing)
    gc.disable()
    try:
        done = threading.Event()
        crew.put(thing.work)
        del thing
        crew.put(done.set)  # the thread has let go of the other work before
        assert done.wait(30)
        assert gone() is None
    finally:
        gc.enable()
    crew.close()


def test_who_was_replaced_may_end_while_the_crew_closes(monkeypatch: pytest.MonkeyPatch, switching: None) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    for _ in range(500):
        crew, gate = Crew("late", 2), threading.Event()
        held = hold(crew, gate, 2)
        for thread in held:
            crew.replace(thread)
        gate.set()
        assert crew.close()
        for thread in held:
            thread.join(30)
    assert errors == []
