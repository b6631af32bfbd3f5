"""The first process of a container: finishes its walls, and becomes the image's program. tests/deploy/container.py
starts it in namespaces of its own, without a way to new privileges.

    python enter.py ROOT BUNDLE UID GID WORKDIR ENVIRONMENT ARGUMENTS

The root file system and the bundle are read-only, and there is no /tmp but the image's: what would be written fails.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def bind_read_only(source: Path, target: Path) -> None:
    mount("--bind", source, target)
    mount("-o", "remount,bind,ro", target)


def build_walls(root: Path, bundle: Path | None) -> None:
    mount("--bind", root, root)
    mount("-t", "proc", "proc", root / "proc")
    mount("-t", "tmpfs", "-o", "mode=755,size=64k", "tmpfs", root / "dev")
    for name in ("null", "zero", "random", "urandom"):
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", root / "dev" / name)
    mount("-o", "remount,ro", root / "dev")
    if bundle is not None:
        bind_read_only(bundle, root / "bundle")
    mount("-o", "remount,bind,ro", root)


def raise_loopback() -> None:
    """Bring up 127.0.0.1; a new network namespace has nothing else."""
    with socket.socket() as any_socket:
        flags = struct.unpack("16sH", fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH", b"lo", 0)))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH", b"lo", flags | IFF_UP))


def main() -> None:
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
