"""Who may talk on a cluster: mutual TLS from files, and no secret where it would be kept or shown."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from distributed import Security
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, model_validator

from dpdist.cluster.certificates import ROLES, Role, certificate_faults, key_mode_faults
from dpdist.core.errors import InputError

_SECRET_NAME = re.compile(r"(passw(or)?d|passphrase|pkcs11_pin|secret_?key|secret_?access_?key|token)$", re.IGNORECASE)
_SECRET_LINE = re.compile(r"\w*(passw(or)?d|passphrase|secret|token)\w*=[\"']?[^\s\"'$]", re.IGNORECASE)


def _absolute(value: str, info: ValidationInfo) -> str:
    """A path, taken from the folder of the file that names it."""
    if "\n" in value or not value:
        raise ValueError("should be the path of a file or folder, not its contents")
    folder = (info.context or {}).get("folder", ".")
    return str(Path(folder).absolute() / Path(value).expanduser())


#: A path that is absolute once read: relative ones start at the configuration's folder, ``~`` is the home folder.
PathText = Annotated[str, AfterValidator(_absolute)]


class SecurityConfig(BaseModel):
    """Files of mutual TLS: a folder made by ``dpdist certificates``, or each file by its path.

    Parameters
    ----------
    tls : False goes without, which must be said
    certificates : folder with ``ca.pem`` and ``<role>.pem`` and ``<role>.key`` for scheduler, worker and client
    ca_file : certificate of the authority that signed all others, in place of `certificates`
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tls: bool = True
    certificates: PathText | None = None
    ca_file: PathText | None = None
    scheduler_cert: PathText | None = None
    scheduler_key: PathText | None = None
    worker_cert: PathText | None = None
    worker_key: PathText | None = None
    client_cert: PathText | None = None
    client_key: PathText | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> SecurityConfig:
        files = sorted(self.model_dump(exclude_none=True, exclude={"tls", "certificates"}))
        if not self.tls and (files or self.certificates):
            raise ValueError("tls = false goes without certificates, but certificates are given: remove one of the two")
        if self.tls and self.certificates and files:
            raise ValueError(f"give certificates (a folder) or single files, not both; got both it and {files[0]}")
        if self.tls and not self.certificates and not self.ca_file:
            raise ValueError(
                "certificates (a folder made with `dpdist certificates FOLDER`) or ca_file, client_cert and client_key "
                "and the like are needed; or say tls = false"
            )
        return self

    def missing(self, roles: Sequence[Role]) -> list[str]:
        """Names of the settings still needed for `roles`."""
        if not self.tls or self.certificates:
            return []
        given = self.model_dump()
        return [name for role in roles for name in (f"{role}_cert", f"{role}_key") if given[name] is None]

    def faults(self, roles: Sequence[Role] = ROLES) -> list[str]:
        """What is wrong, or soon will be, with the files of these roles: a sentence each, none if all is well."""
        files = {role: self.options(role) for role in roles}
        pairs = [(Path(files[role][f"tls_{role}_cert"]), Path(files[role][f"tls_{role}_key"])) for role in roles]
        authority = Path(files[roles[0]]["tls_ca_file"])
        return [*certificate_faults(authority, pairs), *key_mode_faults(authority.with_name("ca.key"))]

    def options(self, role: Role) -> dict[str, Any]:
        """Keywords of :class:`distributed.Security` for a process of one role: paths, never contents."""
        if self.certificates is not None:
            folder = Path(self.certificates)
            ca, cert, key = (str(folder / name) for name in ("ca.pem", f"{role}.pem", f"{role}.key"))
        else:
            given = self.model_dump()
            ca, cert, key = given["ca_file"], given[f"{role}_cert"], given[f"{role}_key"]
        return {"require_encryption": True, "tls_ca_file": ca, f"tls_{role}_cert": cert, f"tls_{role}_key": key}

    def security(self, roles: Sequence[Role] = ROLES) -> Security:
        """Mutual TLS for these roles in this process.

        Raises
        ------
        InputError
            If TLS is switched off, a file is missing, a key can be read by others or has a passphrase, or the files
            do not fit together.
        """
        if not self.tls:
            raise InputError("[security] says tls = false, so that there are no certificates to use.")
        options: dict[str, Any] = {}
        for role in roles:
            mine = self.options(role)
            _check_files(Path(mine["tls_ca_file"]), Path(mine[f"tls_{role}_cert"]), Path(mine[f"tls_{role}_key"]))
            options |= mine
        security = Security(**options)
        for role in roles:
            _load(security, role)
        return security


def _check_files(ca: Path, certificate: Path, key: Path) -> None:
    for path in (ca, certificate, key):
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            raise InputError(
                f"the certificate file {path} cannot be read ({error.strerror}); make the files with: "
                "dpdist certificates FOLDER, and name the folder in [security]."
            ) from error
        if "ENCRYPTED" in text:
            raise InputError(f"the key {path} has a passphrase, which nobody could type on a worker; give one without.")
    for fault in key_mode_faults(key):
        raise InputError(fault)


def _load(security: Security, role: Role) -> None:
    try:
        security.get_connection_args(role)
    except (ssl.SSLError, OSError, ValueError) as error:
        files = security.get_tls_config_for_role(role)
        raise InputError(
            f"the {role}'s certificate {files['cert']} and key do not load ({error}); dpdist doctor says what is wrong."
        ) from error


def refuse_secrets(values: Any, place: str = "") -> None:
    """Raise :class:`InputError`, without repeating it, if a secret stands in a configuration: runs keep a copy."""
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
        f"setting {place} {what}, and cluster configurations are kept with runs and in job scripts: use key files "
        "(client_keys), an ssh agent, or credentials that the hosts find by themselves."
    )
