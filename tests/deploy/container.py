"""Runs an image as a container engine would, without one: namespaces, a read-only root, the image's own user, command
and environment, no network but 127.0.0.1, no capabilities. As root on Linux only.

    python container.py ROOT BUNDLE UID GID WORKDIR ENVIRONMENT ARGUMENTS    what Container starts in the namespaces
"""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts")
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


class Container:
    """A running container of the image with file system `root` and Docker configuration `config`.

    `arguments` stand in the place of the image's Cmd, `entrypoint` in that of its Entrypoint, `user` (UID:GID) in that
    of its User; `settings` are added to its environment. Everything in it is killed at the end.
    """

    def __init__(
        self,
        root: Path,
        config: Mapping[str, Any],
        bundle: Path | None = None,
        *,
        entrypoint: Sequence[str] | None = None,
        arguments: Sequence[str] | None = None,
        settings: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self.user, _, self.group = (user or str(config["User"])).partition(":")
        self.environment = dict(item.split("=", 1) for item in config["Env"]) | dict(settings or {})
        command = [*(entrypoint or config["Entrypoint"]), *(config["Cmd"] if arguments is None else arguments)]
        inside = [str(root), str(bundle or ""), self.user, self.group, config["WorkingDir"]]
        unshare = ["unshare", *NAMESPACES, "--fork", "setpriv", "--no-new-privs"]
        self.process = subprocess.Popen(
            [*unshare, sys.executable, __file__, *inside, json.dumps(self.environment), json.dumps(command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def ready_line(self) -> str:
        """The first line of stdout, as soon as it is there."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    @property
    def pid(self) -> int:
        """The first process of the container, as this system numbers it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while self.process.poll() is None:
            if found := children.read_text().split():
                return int(found[0])
            time.sleep(0.01)
        raise RuntimeError(f"the container has ended: {self.wait()}")

    def status(self) -> dict[str, str]:
        """What the kernel says of the first process."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as the container's user and in its environment."""
        where = ["--mount", "--net", "--pid", "--ipc", "--root", "--wd"]
        enter = ["nsenter", "--target", str(self.pid), *where, "--setuid", self.user, "--setgid", self.group]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return subprocess.run([*enter, "env", "-i", *variables, *command], capture_output=True, text=True, timeout=120)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Send a request to the service inside; POST where there is a body. Gives status and text."""
        enter = ["nsenter", "--target", str(self.pid), "--net"]
        curl = ["curl", "--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}"]
        posted = [] if body is None else ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
        command = [*enter, *curl, *posted, f"http://127.0.0.1:8080{path}"]
        answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
        content, _, status = answer.rpartition("\n")
        return int(status), content

    def stop(self) -> tuple[int, str, str]:
        """Send SIGTERM to the first process, as an engine does; give exit status, stdout and stderr."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr."""
        output, errors = self.process.communicate(timeout=120)
        return self.process.returncode, output, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # and with the first process all others
        self.process.communicate()


def mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def build_walls(root: Path, bundle: Path | None) -> None:
    mount("--bind", root, root)
    mount("-t", "proc", "proc", root / "proc")
    mount("-t", "tmpfs", "-o", "mode=755,size=64k", "tmpfs", root / "dev")
    for name in ("null", "zero", "random", "urandom"):
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", root / "dev" / name)
    mount("-o", "remount,ro", root / "dev")
    if bundle is not None:
        mount("--bind", bundle, root / "bundle")
        mount("-o", "remount,bind,ro", root / "bundle")
    mount("-o", "remount,bind,ro", root)


def raise_loopback() -> None:
    """Bring up 127.0.0.1; a new network namespace has nothing else."""
    with socket.socket() as any_socket:
        flags = struct.unpack("16sH", fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH", b"lo", 0)))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH", b"lo", flags | IFF_UP))


def main() -> None:
    """Be the first process of a container: finish its walls, and become the image's program.

    The root file system and the bundle are read-only, and there is no /tmp but the image's, so that writing fails.
    """
    root, bundle, uid, gid, workdir, environment, arguments = sys.argv[1:]
    raise_loopback()
    build_walls(Path(root), Path(bundle) if bundle else None)
    os.chroot(root)
    os.chdir(workdir)
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))  # leaves no capabilities
    variables = json.loads(environment)
    command = json.loads(arguments)
    os.environ["PATH"] = variables["PATH"]  # where the program is looked for
    os.execvpe(command[0], command, variables)


if __name__ == "__main__":
    main()
