"""Keys: who may talk to a server, and how both sides authenticate each other (CurveZMQ, rfc.zeromq.org/spec/26).

`make_tenant` makes a server's folder. It holds what the server reads, and one folder for each tenant to be handed over:

    server.key  server.key_secret       the server's key pair
    tenants/NAME.key  NAME.json         the allow-list: a tenant's public key; the digest of its token, and its quotas
    for-NAME/                           what the tenant gets: server.key  tenant.key_secret  tenant.json

Keys are ZeroMQ certificates. A secret file must be readable by its owner alone; otherwise it is refused.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import zmq.auth
from msgspec import Meta

from hybridps.config import Settings
from hybridps.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Quota = Annotated[int, Meta(ge=1)]


class Credentials(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tenant needs to talk to its servers. Keys are Z85 text; `server` is the servers' public key.

    `tenant.json` has these fields without the keys.
    """

    tenant: str
    token: str
    public: str = ""
    secret: str = ""
    server: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Credentials | None:
        """Return the credentials that the settings name, if any. Raises ConfigError if they cannot be used."""
        if settings.credentials is not None:
            try:
                return msgspec.json.decode(base64.urlsafe_b64decode(settings.credentials), type=cls)
            except ValueError:
                raise ConfigError("HYBRIDPS_CREDENTIALS cannot be read: leave it to `hybridps run`") from None
        return None if settings.keys is None else cls.load(Path(settings.keys))

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read the credentials in a folder `for-NAME`. Raises ConfigError."""
        public, secret = _certificate(folder / "tenant.key_secret", with_secret=True)
        server, _ = _certificate(folder / "server.key")
        named = _read(folder / "tenant.json", cls, secret=True)
        return msgspec.structs.replace(named, public=public, secret=secret, server=server)

    def text(self) -> str:
        """Return the credentials as one word, for the environment."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    def secure(self, socket: Any) -> None:
        """Make a client's socket use these keys. Call this before it connects."""
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_serverkey = self.server.encode()


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tenant may use of one server. None: no bound of its own."""

    memory_bytes: Quota | None = None
    """The memory of its tables and of its waiting messages."""
    bytes_per_second: Quota | None = None
    """The rate of exchanged or pulled chunks, in one direction."""


class Tenant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant that a server knows. `name` is that of its file, which does not contain it."""

    token_sha256: str
    quotas: Quotas
    name: str = ""

    def knows(self, token: str) -> bool:
        return secrets.compare_digest(_digest(token), self.token_sha256)


class AllowList(msgspec.Struct, frozen=True):
    """A server's own key pair, and its tenants by their public keys (Z85)."""

    public: str
    secret: str
    tenants: Mapping[str, Tenant]

    @classmethod
    def of(cls, settings: Settings) -> AllowList | None:
        """Return the allow-list that the settings name, if any. Raises ConfigError if it cannot be used."""
        return None if settings.server_keys is None else cls.load(Path(settings.server_keys))

    @classmethod
    def load(cls, folder: Path) -> AllowList:
        """Read the allow-list in a server's folder. Raises ConfigError."""
        public, secret = _certificate(folder / "server.key_secret", with_secret=True)
        tenants = {}
        for path in sorted((folder / "tenants").glob("*.key")):
            tenant = _read(path.with_suffix(".json"), Tenant)
            tenants[_certificate(path)[0]] = msgspec.structs.replace(tenant, name=path.stem)
        if not tenants:
            raise ConfigError(f"{folder} has keys of no tenant: make them with `hybridps keys {folder} NAME`")
        return cls(public, secret, tenants)

    def secure(self, socket: Any) -> None:
        """Make a server's socket demand keys. Call this before it is bound."""
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.zap_domain = b"hybridps"


def make_tenant(folder: Path, name: str, quotas: Quotas | None = None) -> Path:
    """Make keys and a token for a tenant, and the server's pair if there is none. Returns the tenant's folder.

    Raises ConfigError if the name cannot be used or is taken.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a name of a tenant: use up to 64 letters, digits, dots, dashes, underscores"
        )
    theirs = folder / f"for-{name}"
    if theirs.exists() or (folder / "tenants" / f"{name}.key").exists():
        raise ConfigError(f"{folder} has keys of {name!r} already: remove {theirs} and tenants/{name}.* to renew them")
    before = os.umask(0o077)
    try:
        for place in (folder / "tenants", theirs):
            place.mkdir(parents=True, exist_ok=True)
        if not (folder / "server.key_secret").exists():
            zmq.auth.create_certificates(folder, "server")
        token = secrets.token_urlsafe(24)
        zmq.auth.create_certificates(theirs, "tenant")
        (theirs / "tenant.json").write_bytes(msgspec.json.encode(Credentials(name, token)))
        shutil.copyfile(folder / "server.key", theirs / "server.key")
        allowed = msgspec.json.encode(Tenant(_digest(token), quotas or Quotas()))
        (folder / "tenants" / f"{name}.json").write_bytes(msgspec.json.format(allowed, indent=1))
        # This file comes last, because it makes the tenant known.
        (theirs / "tenant.key").rename(folder / "tenants" / f"{name}.key")
    except OSError as error:
        raise ConfigError(f"keys cannot be made in {folder}: {error.strerror}: {error.filename}") from None
    finally:
        os.umask(before)
    return theirs


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _read(path: Path, kind: Any = None, secret: bool = False) -> Any:
    """Read the record of class `kind` in a JSON file or, without `kind`, the key pair in a certificate.

    `secret`: whether the file must be readable by its owner alone. Raises ConfigError.
    """
    try:
        if secret and path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by others, who may have it by now: renew it, or chmod 600")
        return msgspec.json.decode(path.read_bytes(), type=kind) if kind else zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; make keys with `hybridps keys`") from None


def _certificate(path: Path, with_secret: bool = False) -> tuple[str, str]:
    """Return the public and the secret key in a certificate. Raises ConfigError."""
    public, secret = _read(path, secret=with_secret)
    if with_secret and not secret:
        raise ConfigError(f"{path} has no secret key: make keys with `hybridps keys`")
    return public.decode(), (secret or b"").decode()
