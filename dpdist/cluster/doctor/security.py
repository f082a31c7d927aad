"""Certificates, and whether a scheduler really refuses whoever has none."""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from dpdist.cluster.certificates import NOTICE_DAYS, certificate_faults
from dpdist.cluster.doctor.findings import Finding, Level, fault, of_sentence, ok, once, warning
from dpdist.cluster.doctor.judgements import host_of, is_loopback
from dpdist.cluster.kinds import ClusterConfig, SecurityConfig
from dpdist.cluster.kinds.kubernetes import KubernetesConfig
from dpdist.cluster.kinds.security import Role

#: Seconds a scheduler has to answer a connection.
_ANSWER = 10.0
_MAKE = "make new ones with: dpdist certificates FOLDER"


class Answer(Enum):
    """What a scheduler does with a TLS connection that shows no certificate."""

    REFUSED = "refuses"
    ADMITTED = "lets in"
    PLAIN = "does not speak TLS"
    ABSENT = "cannot be reached"


def check_certificates(config: ClusterConfig) -> list[Finding]:
    """Are the files there, private, in time, and of one authority?"""
    security = config.security
    if security is None or not security.tls:
        return []
    if isinstance(config, KubernetesConfig):
        return [ok("certificates", f"of Secret {config.certificates_secret}, which is checked in the pods only")]
    with _as_folder(security, config.roles) as (folder, names):
        found = judge_certificates([_named(sentence, names) for sentence in certificate_faults(folder, config.roles)])
    return [*found, *_authority_key(security)]


def judge_certificates(sentences: Sequence[str]) -> list[Finding]:
    """A fault each, but a warning for a certificate that still holds for a few days."""
    soon = f"within {NOTICE_DAYS} days"
    found = [
        of_sentence(Level.WARNING if soon in each else Level.FAULT, "certificates", each, _MAKE) for each in sentences
    ]
    return once(found, ok("certificates", "private, in time and of one authority"))


def _authority_key(security: SecurityConfig) -> list[Finding]:
    """The key that signs certificates should lie where no cluster is used."""
    folder = security.certificates or str(Path(security.ca_file or "").parent)
    key = Path(folder) / "ca.key"
    if not key.exists():
        return []
    told = f"{key} is on this host, and whoever reads it can make certificates of their own"
    return [warning("certificates", told, "move it to a place that is not used to reach the cluster")]


@contextlib.contextmanager
def _as_folder(security: SecurityConfig, roles: Sequence[Role]) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files as the folder that ``dpdist certificates`` makes, by links if need be; link -> file."""
    if security.certificates is not None:
        yield Path(security.certificates), {}
        return
    with tempfile.TemporaryDirectory() as name:
        folder, files = Path(name), {}
        for role in roles:
            given = security.options(role)
            files[folder / "ca.pem"] = given["tls_ca_file"]
            files[folder / f"{role}.pem"] = given[f"tls_{role}_cert"]
            files[folder / f"{role}.key"] = given[f"tls_{role}_key"]
        for link, file in files.items():
            link.symlink_to(file)
        yield folder, {str(link): file for link, file in files.items()}


def _named(sentence: str, names: dict[str, str]) -> str:
    for link, file in names.items():
        sentence = sentence.replace(link, file)
    return sentence


def connect_without_certificate(address: str) -> Answer:
    """What the scheduler at an address such as ``tls://host:8786`` does with a stranger."""
    port = int(address.rpartition(":")[2])
    context = ssl.create_default_context()
    # The stranger does not care whose scheduler it is.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host_of(address), port), timeout=_ANSWER) as plain,
            context.wrap_socket(plain) as secured,
        ):
            return _heard(secured)
    except ssl.SSLError as error:
        return Answer.REFUSED if "ALERT" in (error.reason or "") else Answer.PLAIN
    except OSError:
        return Answer.ABSENT


def _heard(secured: ssl.SSLSocket) -> Answer:
    """In TLS 1.3 a refusal comes after the handshake, with the first read."""
    try:
        return Answer.ADMITTED if secured.recv(100) else Answer.REFUSED
    except TimeoutError:
        return Answer.ADMITTED
    except ConnectionResetError:
        return Answer.REFUSED


def judge_tls(encrypted: bool, addresses: Sequence[str], answer: Answer | None) -> list[Finding]:
    """Is mutual TLS in force where it should be?

    Parameters
    ----------
    encrypted : whether the configuration asks for it
    addresses : of scheduler and workers
    answer : of the scheduler to a stranger, if it was asked
    """
    if not encrypted:
        return _judge_plain(addresses)
    plain = [address for address in addresses if not address.startswith("tls://")]
    found = [fault("TLS", f"{address} goes without TLS", "start it with --protocol tls") for address in plain]
    if answer is Answer.ADMITTED:
        told = "the scheduler lets in a connection without a certificate"
        found.append(fault("TLS", told, "start it with --tls-ca-file, --tls-cert and --tls-key"))
    elif answer is not Answer.REFUSED:
        told = "not asked" if answer is None else answer.value
        found.append(
            fault("TLS", f"a scheduler that refuses strangers was expected; this one {told}", "look at its log")
        )
    return once(found, ok("TLS", "in force; a connection without a certificate is refused"))


def _judge_plain(addresses: Sequence[str]) -> list[Finding]:
    beyond = [each for each in addresses if not is_loopback(host_of(each))]
    if beyond:
        told = f"off, and {beyond[0]} can be reached from other hosts: whoever does so runs programs as you"
        return [warning("TLS", told, "make certificates with `dpdist certificates FOLDER`; name it under [security]")]
    return [ok("TLS", "off; all connections stay on loopback")]
