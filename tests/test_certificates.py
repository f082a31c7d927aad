"""Certificates: made whole, private, refused when taken, and judged in sentences."""

from __future__ import annotations

import re
import shutil
import ssl
import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from dpdist.cluster import certificates
from dpdist.cluster.certificates import ROLES, make_certificates
from dpdist.core.errors import InputError, OutputExistsError


def certificate_faults(folder: Path) -> list[str]:
    """What is found of a folder, or soon will be."""
    return certificates.certificate_faults(folder) or certificates.ending_soon(folder)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of certificates."""
    return make_certificates(tmp_path / "certificates", ["node1.example.org", "*.cluster", "10.0.0.7", "::1"])


def test_certificates_are_for_the_hosts_and_for_both_ends(folder) -> None:
    for role in ROLES:
        certificate = x509.load_pem_x509_certificate((folder / f"{role}.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["node1.example.org", "*.cluster"]
        assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "::1"]
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def test_every_pair_loads_and_is_accepted_under_strict_rules(folder) -> None:
    for role in ROLES:
        server, client = (
            ssl.create_default_context(purpose, cafile=folder / "ca.pem")
            for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH)
        )
        server.verify_mode = ssl.CERT_REQUIRED
        for context in (server, client):
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            context.load_cert_chain(folder / f"{role}.pem", folder / f"{role}.key")
        _shake_hands(server, client)


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """A handshake in memory; raises if either end refuses the other."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname="node1.example.org"), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not ends


def test_keys_and_folder_are_their_owners_alone(folder) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for key in [folder / "ca.key", *(folder / f"{role}.key" for role in ROLES)]:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_certificates_are_never_overwritten(folder) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OutputExistsError, match="not overwritten"):
        make_certificates(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_empty_folder_is_filled_and_nothing_is_left_beside_it(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    make_certificates(tmp_path / "empty")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert certificate_faults(tmp_path / "empty") == []


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"days": 0}, "days should be a whole number from 1"),
        ({"days": 1.5}, "days should be a whole number"),
        ({"days": True}, "days should be a whole number"),
        ({"days": 10**6}, "from 1 to 36500; got 1000000"),
        ({"hosts": []}, "at least one host"),
        ({"hosts": "localhost"}, "hosts should be a list"),
        ({"hosts": ["two words"]}, "a host should be a name .* got 'two words'"),
        ({"hosts": ["https://node1"]}, "a host should be a name"),
    ],
)
def test_bad_input_gets_a_sentence_and_leaves_nothing(tmp_path, wrong, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        make_certificates(tmp_path / "certificates", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written_gets_a_sentence(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        make_certificates(tmp_path / "file" / "certificates")


def test_good_certificates_have_no_faults(folder) -> None:
    assert certificate_faults(folder) == []
    (folder / "ca.key").unlink()
    assert certificate_faults(folder) == []


def _missing(folder: Path) -> None:
    (folder / "worker.key").unlink()


def _open_key(folder: Path) -> None:
    (folder / "client.key").chmod(0o644)


def _open_authority(folder: Path) -> None:
    (folder / "ca.key").chmod(0o640)


def _ending(folder: Path) -> None:
    shutil.rmtree(folder)
    make_certificates(folder, days=3)


def _foreign(folder: Path) -> None:
    other = make_certificates(folder.with_name("other"))
    for kind in ("pem", "key"):
        shutil.copy(other / f"worker.{kind}", folder / f"worker.{kind}")


def _mixed_up(folder: Path) -> None:
    shutil.copy(folder / "worker.key", folder / "scheduler.key")


def _not_pem(folder: Path) -> None:
    (folder / "scheduler.pem").write_text("nonsense")


def _no_authority(folder: Path) -> None:
    (folder / "ca.pem").write_text("nonsense")


def _no_key(folder: Path) -> None:
    (folder / "scheduler.key").write_text("nonsense")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_missing, "worker.key is missing"),
        (_open_key, "client.key has mode 0644"),
        (_open_authority, "ca.key has mode 0640"),
        (_ending, "within 7 days"),
        (_foreign, "worker.pem, its key and .* do not fit together"),
        (_mixed_up, "scheduler.pem, its key and .* do not fit together .*MISMATCH"),
        (_not_pem, "scheduler.pem, its key .* do not fit together"),
        (_no_authority, "ca.pem do not fit together"),
        (_no_key, "scheduler.pem, its key and"),
    ],
)
def test_every_fault_is_a_sentence(folder, spoil, sentence) -> None:
    spoil(folder)
    faults = certificate_faults(folder)
    assert any(re.search(sentence, fault) for fault in faults), faults
    assert all(fault.count("\n") == 0 and "PRIVATE" not in fault for fault in faults)


@pytest.mark.parametrize("shift", [-10, 400])
def test_a_certificate_out_of_its_time_is_reported(folder, monkeypatch, shift) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return super().now(zone) + timedelta(days=shift)

    monkeypatch.setattr("dpdist.cluster.certificates.datetime", Clock)
    assert any("check the clock, or make new certificates" in fault for fault in certificate_faults(folder))
