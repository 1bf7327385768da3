"""Model files that only the holder of a key can read: AES-256-GCM, the key made by scrypt from a passphrase.

An encrypted file keeps its name and begins so (every field before the content is authenticated with it):

    8 bytes  "inkmillE"          1 byte  version of this layout
    3 bytes  log2 N, r, p of scrypt (RFC 7914)
    16 bytes salt                12 bytes nonce
    content, of the same length as the plain file; 16 bytes tag

A file is decrypted in memory and believed only after its tag was checked; nothing plain is ever written beside it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from inkmill.errors import ConfigError, MissingExtraError, ModelFileError
from inkmill.files import explain, open_data, read_data

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.modes import GCM

MAGIC = b"inkmillE"
NOT_STORED = "(not stored)"
"""What a spec that is printed or stored says in place of a passphrase."""
SETTING = "encryption_key"
"""The key of a spec that may hold one."""

TEMPLATE = "nvidia_tao"
"""What stands in every spec template of TAO. Everyone knows it, and TAO's own files are not encrypted with it, so files
are written plain; it still opens what was encrypted with it."""

_HEADER = struct.Struct("<8sBBBB16s12s")
_VERSION, _TAG_BYTES = 1, 16
_MAX_BYTES = 8 << 30  # of a model file that is held in memory
_LOG2_N, _R, _P = 16, 8, 2
"""64 MiB and some 0.3 s a guess: one of the settings that OWASP's password storage page recommends."""
_MAX_LOG2_N, _MAX_R, _MAX_P = 18, 8, 4
"""What a file may ask for: 256 MiB, so that a hostile one cannot take the memory or the day."""


class Key:
    """A passphrase; neither printed nor pickled.

    Args:
        passphrase: any text but the empty one.

    Raises:
        ConfigError: empty.
        MissingExtraError: the package `cryptography` is not installed.
    """

    def __init__(self, passphrase: str) -> None:
        if not passphrase:
            raise ConfigError("the encryption key is empty; give a passphrase, env:NAME or file:PATH")
        try:
            import cryptography  # noqa: F401 - said now, not after an epoch
        except ModuleNotFoundError as error:
            raise MissingExtraError("cryptography", "train", "an encryption key") from error
        self.writes_plain = passphrase == TEMPLATE
        self._passphrase = passphrase.encode("utf-8", "surrogateescape")  # from the environment: any bytes
        self._salt = os.urandom(16)  # one a process: scrypt is slow, and training writes many files
        self._derived: dict[tuple[int, int, int, bytes], bytes] = {}

    def __repr__(self) -> str:
        return "Key(...)"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled")

    def encrypt(self, content: bytes) -> bytes:
        """Return the bytes of an encrypted file."""
        nonce = os.urandom(12)
        header = _HEADER.pack(MAGIC, _VERSION, _LOG2_N, _R, _P, self._salt, nonce)
        sealer = self._cipher(_LOG2_N, _R, _P, self._salt, nonce).encryptor()
        sealer.authenticate_additional_data(header)
        return b"".join((header, sealer.update(content), sealer.finalize(), sealer.tag))

    def decrypt(self, data: bytes, where: str) -> bytes:
        """Return the content of an encrypted file.

        Args:
            data: the whole file.
            where: its name, for the error.

        Raises:
            ModelFileError: the key does not fit, the file is damaged, or it was written by a later inkmill.
        """
        from cryptography.exceptions import InvalidTag

        if len(data) < _HEADER.size + _TAG_BYTES:
            raise ModelFileError(f"{where}: cut short, an encrypted file has {_HEADER.size + _TAG_BYTES} bytes or more")
        magic, version, log2_n, r, p, salt, nonce = _HEADER.unpack_from(data)
        if magic != MAGIC or version != _VERSION:
            raise ModelFileError(f"{where}: encrypted in layout {version}, this inkmill reads layout {_VERSION}")
        if not (1 <= log2_n <= _MAX_LOG2_N and 1 <= r <= _MAX_R and 1 <= p <= _MAX_P):
            raise ModelFileError(f"{where}: asks for more work to derive its key than an honest file does; refused")
        opener = self._cipher(log2_n, r, p, salt, nonce, data[-_TAG_BYTES:]).decryptor()
        opener.authenticate_additional_data(data[: _HEADER.size])
        try:
            content = opener.update(memoryview(data)[_HEADER.size : -_TAG_BYTES])
            return content + opener.finalize()
        except InvalidTag:
            raise ModelFileError(
                f"{where}: this encryption key does not open it (another key wrote it, or the file was changed since)"
            ) from None

    def _cipher(self, log2_n: int, r: int, p: int, salt: bytes, nonce: bytes, tag: bytes | None = None) -> Cipher[GCM]:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import GCM
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

        work = (log2_n, r, p, salt)
        if work not in self._derived:
            self._derived[work] = Scrypt(salt=salt, length=32, n=2**log2_n, r=r, p=p).derive(self._passphrase)
        return Cipher(AES(self._derived[work]), GCM(nonce, tag))


def find_key(given: str | None) -> Key | None:
    """Return the key that `encryption_key` means: `env:NAME`, `file:PATH` (its first line), or the passphrase itself.

    Raises:
        ConfigError: no such variable or file, or it is empty.
    """
    if given is None:
        return None
    kind, _, rest = given.partition(":")
    if given == NOT_STORED:
        raise ConfigError("this spec was written by a run whose encryption_key was not stored: give it once more")
    if kind == "env":
        if not os.environ.get(rest):
            raise ConfigError(f"encryption_key={given}: the environment variable {rest} is not set, or empty")
        return Key(os.environ[rest])
    if kind != "file":
        return Key(given)
    try:
        lines = read_data(rest, 1 << 20, pipes=True).decode("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"encryption_key={given}: cannot be read ({explain(error)})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"encryption_key={given}: not UTF-8 text") from error
    if not lines or not lines[0]:
        raise ConfigError(f"encryption_key={given}: the first line of the file is empty; put the passphrase there")
    return Key(lines[0])


def without_secret(given: str | None) -> str | None:
    """Return what of `encryption_key` may be written down: where the passphrase is found, never itself."""
    return given if given is None or given.startswith(("env:", "file:")) else NOT_STORED


def sealed(content: bytes, key: Key | None) -> bytes:
    """Return what a file is to hold: the content, encrypted where there is a key of one's own."""
    return content if key is None or key.writes_plain else key.encrypt(content)


def told(key: Key | None) -> str:
    """Return the line that a verb which writes model files prints of their encryption; empty without a key."""
    if key is None:
        return ""
    if key.writes_plain:
        return (
            f"model files are written plain: {SETTING}={TEMPLATE} is the value of TAO's templates, which everyone "
            "knows; another passphrase encrypts them"
        )
    return f"model files are written encrypted ({SETTING}): whoever is to read them needs inkmill and this key"


def is_encrypted(path: Path) -> bool:
    """Return whether a file is one of `Key.encrypt`; a file that cannot be read is not."""
    try:
        with open_data(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_plain(path: Path, key: Key | None) -> bytes:
    """Return the content of a file, decrypted where it is encrypted.

    Raises:
        ModelFileError: it cannot be read, or it is encrypted and there is no key, or another one.
    """
    try:
        data = read_data(path, _MAX_BYTES)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({explain(error)})") from error
    if not data.startswith(MAGIC):
        return data
    if key is None:
        raise ModelFileError(f"{path}: encrypted; give its key as encryption_key=env:NAME, file:PATH or the passphrase")
    return key.decrypt(data, str(path))
