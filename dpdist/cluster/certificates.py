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
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpdist.core.errors import InputError, OutputExistsError

#: The parts of a cluster, each with a certificate of its own.
ROLES = ("scheduler", "worker", "client")
#: Days before the end of a certificate from which it is reported.
NOTICE_DAYS = 7
#: Certificates hold from a day earlier, for hosts whose clocks are behind.
_BACKDATED = timedelta(days=1)
_MAX_DAYS = 36500
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_-]{1,63})*")


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


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
    target, names = Path(folder), _alternative_names(hosts)
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= _MAX_DAYS:
        raise InputError(f"days should be a whole number from 1 to {_MAX_DAYS}; got {days!r}.")
    _refuse_taken(target)
    aside = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex}")
    try:
        aside.mkdir(mode=0o700, parents=True)
        _fill(aside, names, days)
        aside.rename(target)
    except OSError as error:
        raise InputError(f"certificates cannot be written to {target} ({error.strerror}).") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def certificate_faults(folder: str | os.PathLike[str], roles: Sequence[str] = ROLES) -> list[str]:
    """What is wrong, or soon will be, with a folder of certificates: a sentence for each fault, none if all is well.

    Parameters
    ----------
    folder : as :func:`make_certificates` makes it; ``ca.key`` may be absent
    roles : parts of the cluster whose files should be there
    """
    where = Path(folder)
    needed = [where / "ca.pem", *(where / f"{role}.{kind}" for role in roles for kind in ("pem", "key"))]
    missing = [path for path in needed if not path.is_file()]
    if missing:
        return [f"{path} is missing; make certificates with: dpdist certificates FOLDER." for path in missing]
    authority = _read_certificate(where / "ca.pem")
    if isinstance(authority, str):
        return [authority]
    return [
        *_time_faults(where / "ca.pem", authority),
        *key_mode_faults(where / "ca.key"),
        *(fault for role in roles for fault in _role_faults(where, role, authority)),
    ]


def key_mode_faults(path: Path) -> list[str]:
    """A sentence if the key at `path` is there and can be read or written by others than its owner."""
    if not path.exists() or not stat.S_IMODE(path.stat().st_mode) & 0o077:
        return []
    mode = stat.S_IMODE(path.stat().st_mode)
    return [f"the key {path} has mode {mode:04o}, so that others can read it; run: chmod 600 {path}"]


def _refuse_taken(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists():
        raise OutputExistsError(
            f"{target} is there already; certificates are not overwritten: give another folder, or remove this one."
        )


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    if isinstance(hosts, str) or not hosts:
        raise InputError(f"hosts should be a list of at least one host name or address; got {hosts!r}.")
    return [_alternative_name(host) for host in hosts]


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if not isinstance(host, str) or not _HOST_NAME.fullmatch(host):
        raise InputError(f"a host should be a name such as node1.example.org or an address; got {host!r}.")
    return x509.DNSName(host)


def _fill(folder: Path, names: list[x509.GeneralName], days: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("dpdist certificate authority")
    builder = _builder(subject, subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    authority = _Authority(builder.sign(key, hashes.SHA256()), key)
    _write_pair(folder, "ca", authority.certificate, key)
    for role in ROLES:
        role_key = ec.generate_private_key(ec.SECP256R1())
        _write_pair(folder, role, _role_certificate(role, role_key, names, days, authority), role_key)


def _role_certificate(
    role: str, key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName], days: int, authority: _Authority
) -> x509.Certificate:
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = _builder(_name(f"dpdist {role}"), authority.certificate.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(issuer, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    _write(folder / f"{name}.pem", certificate.public_bytes(Encoding.PEM), 0o644)
    _write(folder / f"{name}.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file that never had wider permissions than `mode`."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _role_faults(folder: Path, role: str, authority: x509.Certificate) -> list[str]:
    path, key_path = folder / f"{role}.pem", folder / f"{role}.key"
    certificate = _read_certificate(path)
    if isinstance(certificate, str):
        return [certificate, *key_mode_faults(key_path)]
    return [
        *_time_faults(path, certificate),
        *_signature_faults(path, certificate, authority),
        *key_mode_faults(key_path),
        *_pair_faults(key_path, certificate),
    ]


def _read_certificate(path: Path) -> x509.Certificate | str:
    """The certificate, or what is wrong with its file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        return f"the certificate {path} cannot be read ({error.strerror})."
    except ValueError:
        return f"{path} is not a certificate in PEM form; make certificates with: dpdist certificates FOLDER."


def _time_faults(path: Path, certificate: x509.Certificate) -> list[str]:
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        return [f"the certificate {path} holds only from {start:%Y-%m-%d %H:%M} UTC; check this host's clock."]
    if now > end:
        return [f"the certificate {path} ended on {end:%Y-%m-%d %H:%M} UTC; make new ones."]
    if now > end - timedelta(days=NOTICE_DAYS):
        return [f"the certificate {path} ends on {end:%Y-%m-%d %H:%M} UTC, within {NOTICE_DAYS} days; make new ones."]
    return []


def _signature_faults(path: Path, certificate: x509.Certificate, authority: x509.Certificate) -> list[str]:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return [f"the certificate {path} was not signed by {path.with_name('ca.pem')}; use files made together."]
    return []


def _pair_faults(path: Path, certificate: x509.Certificate) -> list[str]:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        return [f"the key {path} cannot be read ({error.strerror})."]
    except (ValueError, TypeError):
        return [f"{path} is not a private key in PEM form without a passphrase."]
    if key.public_key() != certificate.public_key():
        return [f"the key {path} does not belong to {path.with_suffix('.pem')}; use files made together."]
    return []
