"""A certificate authority for one cluster, and a certificate for each of its three roles.

Scheduler, workers and client each present a certificate signed by this authority, and accept no other. A process
without a key signed here can neither read the traffic nor run code on the cluster.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import stat
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpdist.core.errors import InputError, OutputExistsError

#: The roles of processes in a cluster, each with its own certificate.
Role = Literal["scheduler", "worker", "client"]
ROLES: tuple[Role, ...] = ("scheduler", "worker", "client")
#: Number of days before the end of a certificate at which warnings begin.
NOTICE_DAYS = 7
#: Certificates are valid from a day earlier, for hosts whose clocks are behind.
_BACKDATED = timedelta(days=1)
_MAX_DAYS = 36500
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_-]{1,63})*")
_MAKE = "dpdist certificates FOLDER"


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


_AUTHORITY_NAME = "dpdist certificate authority"
_AUTHORITY = _name(_AUTHORITY_NAME)
_Key = ec.EllipticCurvePrivateKey


def make_certificates(
    folder: str | os.PathLike[str], hosts: Sequence[str] = ("localhost", "127.0.0.1"), days: int = 365
) -> Path:
    """Make a certificate authority and certificates for scheduler, worker and client.

    The folder holds ``ca.pem``, ``ca.key`` and, for each role, ``<role>.pem`` and ``<role>.key``; keys are readable by
    their owner alone. It appears whole or not at all.

    Parameters
    ----------
    folder : must not exist, or be empty
    hosts : names and addresses for which the certificates are valid
    days : period of validity, from now

    Raises
    ------
    InputError
        If a host is neither a name nor an address, or `days` is not a number from 1 to 36500.
    OutputExistsError
        If there is something in the folder.
    """
    target = Path(folder)
    if isinstance(hosts, str) or not hosts:
        raise InputError(f"hosts should be a list of at least one host name or address; got {hosts!r}.")
    names = [_alternative_name(host) for host in hosts]
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= _MAX_DAYS:
        raise InputError(f"days should be a whole number from 1 to {_MAX_DAYS}; got {days!r}.")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise OutputExistsError(
            f"{target} exists already, and certificates are not overwritten; give another folder, or remove this one."
        )
    aside = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex}")
    try:
        aside.mkdir(mode=0o700, parents=True)
        authority = ec.generate_private_key(ec.SECP256R1())
        _write_pair(aside, "ca", _certificate(_AUTHORITY_NAME, authority, authority, days), authority)
        for role in ROLES:
            key = ec.generate_private_key(ec.SECP256R1())
            _write_pair(aside, role, _certificate(f"dpdist {role}", key, authority, days, names), key)
        aside.rename(target)
    except OSError as error:
        raise InputError(f"certificates cannot be written to {target} ({error.strerror}).") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if not isinstance(host, str) or not _HOST_NAME.fullmatch(host):
            raise InputError(
                f"a host should be a name such as node1.example.org or an address; got {host!r}."
            ) from None
        return x509.DNSName(host)


def _certificate(
    common: str, key: _Key, authority: _Key, days: int, names: Sequence[x509.GeneralName] = ()
) -> x509.Certificate:
    """The certificate of a role for these names, or, without names, that of the authority."""
    signs, now = not names, datetime.now(UTC)
    builder = x509.CertificateBuilder(_AUTHORITY, _name(common), key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _BACKDATED).not_valid_after(now + timedelta(days=days))
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.BasicConstraints(ca=signs, path_length=0 if signs else None), True),
        (x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False), True),
    ]
    if names:
        extensions += [
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False),
            (x509.SubjectAlternativeName(names), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
        ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, hashes.SHA256())


def _write_pair(folder: Path, name: str, certificate: x509.Certificate, key: _Key) -> None:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for end, data, mode in (("pem", certificate.public_bytes(Encoding.PEM), 0o644), ("key", private, 0o600)):
        # Created with its mode, so that the file never has wider permissions.
        with open(os.open(folder / f"{name}.{end}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())


def certificate_faults(folder: Path, roles: Sequence[Role] = ROLES, private: bool = True) -> list[str]:
    """Faults of the files of these roles, as sentences; empty if all are valid. If `private`, a key that others than
    its owner can read is a fault."""
    needed = [folder / "ca.pem", *(folder / f"{role}.{end}" for role in roles for end in ("pem", "key"))]
    faults = [f"{path} is missing; make certificates with: {_MAKE}." for path in needed if not path.is_file()]
    for path in [] if faults else [*needed, folder / "ca.key"]:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
        if private and path.suffix == ".key" and mode & 0o077:
            faults.append(f"the key {path} has mode {mode:04o}, so that others can read it; run: chmod 600 {path}")
    return faults or [fault for role in ("ca", *roles) for fault in _faults(folder, role)]


def _faults(folder: Path, name: str) -> Iterator[str]:
    """Faults of one certificate whose files all exist."""
    path, now = folder / f"{name}.pem", datetime.now(UTC)
    try:
        certificate, authority = (x509.load_pem_x509_certificate(p.read_bytes()) for p in (path, folder / "ca.pem"))
        certificate.verify_directly_issued_by(authority)
        if name != "ca":
            ssl.create_default_context().load_cert_chain(path, path.with_suffix(".key"), password=lambda: "")
    except (OSError, ValueError, TypeError, InvalidSignature) as error:
        reason = " ".join(str(error).split()) or "ca.pem did not sign it"
        yield (
            f"the certificate {path}, its key and {folder / 'ca.pem'} do not fit together ({reason}); use PEM files "
            f"that were made together, with keys without a passphrase, for example by: {_MAKE}."
        )
        return
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= now <= end:
        yield (
            f"the certificate {path} is valid from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, but this host's "
            f"clock shows {now:%Y-%m-%d %H:%M}; check the clock, or make new certificates."
        )


def ending_soon(folder: Path, roles: Sequence[Role] = ROLES) -> list[str]:
    """A sentence for each valid certificate that ends within :data:`NOTICE_DAYS`."""
    paths = [folder / f"{name}.pem" for name in ("ca", *roles)]
    ends = {path: x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc for path in paths}
    return [
        f"the certificate {path} expires on {end:%Y-%m-%d %H:%M} UTC, within {NOTICE_DAYS} days; make new ones."
        for path, end in ends.items()
        if datetime.now(UTC) > end - timedelta(days=NOTICE_DAYS)
    ]
