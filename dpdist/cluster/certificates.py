"""A certificate authority of one cluster's own, and a certificate for each of its three parts.

Scheduler, workers and client each show a certificate that this authority signed, and accept no other: whoever has no
key signed here can neither read what goes over the wire nor run anything on the cluster.
"""

from __future__ import annotations

import os
import re
import shutil
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
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpdist.core.errors import InputError, OutputExistsError

#: The parts of a cluster, each with a certificate of its own.
Role = Literal["scheduler", "worker", "client"]
ROLES: tuple[Role, ...] = ("scheduler", "worker", "client")
#: Days before the end of a certificate from which it is reported.
NOTICE_DAYS = 7
#: Certificates hold from a day earlier, for hosts whose clocks are behind.
_BACKDATED = timedelta(days=1)
_MAX_DAYS = 36500
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_-]{1,63})*")
_MAKE = "dpdist certificates FOLDER"


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


_AUTHORITY = _name("dpdist certificate authority")


def make_certificates(
    folder: str | os.PathLike[str], hosts: Sequence[str] = ("localhost", "127.0.0.1"), days: int = 365
) -> Path:
    """Make a certificate authority and certificates for scheduler, worker and client.

    The folder holds ``ca.pem``, ``ca.key`` and, for each role, ``<role>.pem`` and ``<role>.key``; keys are readable by
    their owner alone. It appears whole or not at all.

    Parameters
    ----------
    folder : must not exist, or be empty
    hosts : names and addresses that the certificates are for
    days : how long they hold, from now

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
            f"{target} is there already; certificates are not overwritten: give another folder, or remove this one."
        )
    aside = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex}")
    try:
        aside.mkdir(mode=0o700, parents=True)
        authority = ec.generate_private_key(ec.SECP256R1())
        _write_pair(aside, "ca", _authority_certificate(authority, days), authority)
        for role in ROLES:
            key = ec.generate_private_key(ec.SECP256R1())
            _write_pair(aside, role, _role_certificate(role, key, names, days, authority), key)
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


def _authority_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    builder = _builder(_AUTHORITY, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.add_extension(_usage(signs_certificates=True), critical=True).sign(key, hashes.SHA256())


def _role_certificate(
    role: str,
    key: ec.EllipticCurvePrivateKey,
    names: list[x509.GeneralName],
    days: int,
    authority: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    builder = _builder(_name(f"dpdist {role}"), key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.add_extension(issuer, critical=False).sign(authority, hashes.SHA256())


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(_AUTHORITY, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _BACKDATED).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    unused = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        decipher_only=False,
        **unused,
    )


def _write_pair(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for end, data, mode in (("pem", certificate.public_bytes(Encoding.PEM), 0o644), ("key", private, 0o600)):
        # Opened with its mode: the file never has wider permissions.
        with open(os.open(folder / f"{name}.{end}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())


def certificate_faults(authority: Path, pairs: Sequence[tuple[Path, Path]]) -> list[str]:
    """What is wrong, or soon will be, with files of certificates: a sentence for each fault, none if all is well.

    Parameters
    ----------
    authority : certificate that signed all others
    pairs : certificate and key of each part of the cluster
    """
    needed = [authority, *(path for pair in pairs for path in pair)]
    missing = [f"{path} is missing; make certificates with: {_MAKE}." for path in needed if not path.is_file()]
    return missing or list(_faults(authority, pairs))


def _faults(authority_path: Path, pairs: Sequence[tuple[Path, Path]]) -> Iterator[str]:
    try:
        authority = _read_certificate(authority_path)
        yield from _time_faults(authority_path, authority)
    except InputError as error:
        yield str(error)
        return
    for path, key_path in pairs:
        yield from key_mode_faults(key_path)
        try:
            certificate = _read_certificate(path)
            yield from _time_faults(path, certificate)
            certificate.verify_directly_issued_by(authority)
            if _read_key(key_path).public_key() != certificate.public_key():
                yield f"the key {key_path} does not belong to {path}; use files made together."
        except InputError as error:
            yield str(error)
        except (ValueError, TypeError, InvalidSignature):
            yield f"the certificate {path} was not signed by {authority_path}; use files made together."


def key_mode_faults(path: Path) -> list[str]:
    """A sentence if the key at `path` is there and can be read or written by others than its owner."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    if not mode & 0o077:
        return []
    return [f"the key {path} has mode {mode:04o}, so that others can read it; run: chmod 600 {path}"]


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InputError(f"the certificate {path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise InputError(f"{path} is not a certificate in PEM form; make certificates with: {_MAKE}.") from error


def _read_key(path: Path) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise InputError(f"the key {path} cannot be read ({error.strerror}).") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a private key in PEM form without a passphrase.") from error


def _time_faults(path: Path, certificate: x509.Certificate) -> Iterator[str]:
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        yield f"the certificate {path} holds only from {start:%Y-%m-%d %H:%M} UTC; check this host's clock."
    elif now > end:
        yield f"the certificate {path} ended on {end:%Y-%m-%d %H:%M} UTC; make new ones."
    elif now > end - timedelta(days=NOTICE_DAYS):
        yield f"the certificate {path} ends on {end:%Y-%m-%d %H:%M} UTC, within {NOTICE_DAYS} days; make new ones."
