"""Security of a cluster: mutual TLS from files, and refusal of secrets in configurations, which are stored and
shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from distributed import Security
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, model_validator

from dpdist.cluster.certificates import ROLES, Role, certificate_faults
from dpdist.core.errors import InputError

_SECRET_NAME = re.compile(r"(passw(or)?d|passphrase|pkcs11_pin|secret_?key|secret_?access_?key|token)$", re.IGNORECASE)
_SECRET_LINE = re.compile(r"\w*(passw(or)?d|passphrase|secret|token)\w*=[\"']?[^\s\"'$]", re.IGNORECASE)


def _absolute(value: str, info: ValidationInfo) -> str:
    """An absolute path; relative ones start at the folder of the file that names them."""
    if "\n" in value or not value:
        raise ValueError("should be the path of a file or folder, not its contents")
    folder = (info.context or {}).get("folder", ".")
    return str(Path(folder).absolute() / Path(value).expanduser())


#: A path that is made absolute: relative ones start at the configuration's folder, ``~`` is the home folder.
PathText = Annotated[str, AfterValidator(_absolute)]


class SecurityConfig(BaseModel):
    """Mutual TLS, with a folder as made by ``dpdist certificates``.

    Parameters
    ----------
    tls : False switches TLS off
    certificates : folder with ``ca.pem`` and with ``<role>.pem`` and ``<role>.key`` of the roles that this machine
        needs
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    tls: bool = True
    certificates: PathText | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> SecurityConfig:
        if not self.tls and self.certificates:
            raise ValueError("tls = false uses no certificates, but certificates are given: remove one of the two")
        if self.tls and not self.certificates:
            raise ValueError(
                "certificates (a folder made with `dpdist certificates FOLDER`) are required, unless tls = false"
            )
        return self

    @property
    def folder(self) -> Path:
        """The folder of the certificates; raises :class:`InputError` if there is none."""
        if self.certificates is None:
            raise InputError("[security] sets tls = false, so there are no certificates to use.")
        return Path(self.certificates)

    def options(self, role: Role) -> dict[str, object]:
        """Keywords of :class:`distributed.Security` for a process of one role: paths, never contents."""
        ca, cert, key = (str(self.folder / name) for name in ("ca.pem", f"{role}.pem", f"{role}.key"))
        return {"require_encryption": True, "tls_ca_file": ca, f"tls_{role}_cert": cert, f"tls_{role}_key": key}

    def security(self, roles: Sequence[Role] = ROLES, private: bool = True) -> Security:
        """Mutual TLS for these roles in this process; raises :class:`InputError` if TLS is switched off, or a file is
        invalid."""
        for fault in certificate_faults(self.folder, roles, private):
            raise InputError(fault)
        return Security(**{name: value for role in roles for name, value in self.options(role).items()})


def refuse_secrets(values: object, place: str = "") -> None:
    """Raise :class:`InputError`, without showing the value, if a configuration contains a secret, as runs store a
    copy."""
    if isinstance(values, dict):
        for name, value in values.items():
            inner = f"{place}.{name}" if place else str(name)
            if _SECRET_NAME.search(str(name)):
                raise InputError(_no_secret(inner, "is a secret"))
            refuse_secrets(value, inner)
    elif isinstance(values, list | tuple):
        for value in values:
            refuse_secrets(value, place)
    elif isinstance(values, str) and "PRIVATE KEY" in values:
        raise InputError(_no_secret(place, "holds a private key"))
    elif isinstance(values, str) and _SECRET_LINE.search(values):
        raise InputError(_no_secret(place, "sets a secret"))


def _no_secret(place: str, what: str) -> str:
    return (
        f"setting {place} {what}, but cluster configurations are stored in runs and job scripts: use key files "
        "(client_keys), an ssh agent, or credentials that the hosts find by themselves."
    )
