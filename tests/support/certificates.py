"""Certificates that openssl makes."""

import subprocess
from pathlib import Path


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def self_signed(certificate: Path, key: Path) -> None:
    """Write a certificate of 127.0.0.1 and localhost, and its key."""
    about = ("-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *about, "-keyout", key, "-out", certificate)
