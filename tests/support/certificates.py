"""Certificates for servers and clients of tests, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost"
# Python 3.13 and newer take no authority that does not say what its key is for.
AUTHORITY = "keyUsage=critical,digitalSignature,keyCertSign,cRLSign"


def make_certificates(folder: Path, *names: str) -> Path:
    """Make self-signed certificates with their keys, `<name>.crt` and `<name>.key`, in a folder.

    Each is its own authority, for this machine's own addresses. `<name>.locked.key` is the key
    under the password ``secret``. Skips the test where there is no openssl.
    """
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command to make a certificate with")
    for name in names:
        key = folder / f"{name}.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=workstealing test"),
            *("-addext", NAMES, "-addext", AUTHORITY),
            *("-keyout", str(key), "-out", str(folder / f"{name}.crt")),
        )
        _openssl(
            *("pkcs8", "-topk8", "-in", str(key), "-passout", "pass:secret"),
            *("-out", str(folder / f"{name}.locked.key")),
        )
    return folder


def make_signed(folder: Path, authority: str, *names: str) -> Path:
    """Make an authority's certificate and others that it signs, each with its key, in a folder.

    Skips the test where there is no openssl.
    """
    make_certificates(folder, authority)
    names_file = folder / "names.ext"
    names_file.write_text(f"{NAMES}\nauthorityKeyIdentifier=keyid\n")
    for name in names:
        request = folder / f"{name}.csr"
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", str(folder / f"{name}.key")),
            *("-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-days", "2", "-in", str(request), "-CAcreateserial"),
            *("-CA", str(folder / f"{authority}.crt"), "-CAkey", str(folder / f"{authority}.key")),
            *("-extfile", str(names_file), "-out", str(folder / f"{name}.crt")),
        )
    return folder


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
