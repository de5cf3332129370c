"""What a user can cause, as exceptions that name the thing, the value and the way out; and what no message may show.

BathyError                 shown by the command line as one line, exit code 2
├── ConfigError            a setting that does not exist or does not fit
├── DataError              text, tokens or a data folder that cannot be used
│   └── InUse              a folder in which another process works
├── CheckpointError        a run or model folder that cannot be loaded
├── ModelError             a model that a method does not apply to
│   ├── SchemeError        an unknown scheme, or one that cannot do what was asked
│   └── BatchError         a batch from which nothing can be measured
├── TrainingError          a run that cannot continue (the run folder stays resumable)
│   └── Diverged           a run that was stopped because it no longer learns
└── MissingExtraError      an optional package that a command needs
"""

from __future__ import annotations

import errno
import importlib
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from types import ModuleType
from urllib.parse import quote, unquote


class BathyError(Exception):
    """Something the user can fix; its text is one line that says how, without secrets."""

    def __str__(self) -> str:
        return redact(super().__str__())


class ConfigError(BathyError):
    """A setting that does not exist or does not fit."""


class DataError(BathyError):
    """Text, tokens or a data folder that cannot be used."""


class InUse(DataError):  # noqa: N818, it names what happened
    """A folder in which another process works."""


class CheckpointError(BathyError):
    """A run or model folder that cannot be loaded."""


class ModelError(BathyError):
    """A model that a method does not apply to."""


class SchemeError(ModelError):
    """An unknown scheme, or one that cannot do what was asked."""


class BatchError(ModelError):
    """A batch from which nothing can be measured."""


class TrainingError(BathyError):
    """A run that cannot continue; its folder stays resumable."""


class Diverged(TrainingError):  # noqa: N818, it names what happened
    """A run that was stopped because it no longer learns; `sudden` if it did so before, `overflow` if numbers did not fit."""

    def __init__(self, message: str, sudden: bool = True, overflow: bool = False) -> None:
        super().__init__(message)
        self.sudden, self.overflow = sudden, overflow


class MissingExtraError(BathyError):
    """An optional package that a command needs."""


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the known name closest to `name`, or nothing when none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not in a table: the nearest known one, then all of them."""
    names = list(known)
    return f"there is no {kind} {name!r}.{nearest(name, names)} Known: {', '.join(names)}."


def some(names: Iterable[str], most: int = 6) -> str:
    """Names for a sentence: all of a few; of many the first ones, and how many more there are."""
    known = sorted(names)
    more = f" and {len(known) - most} more" if len(known) > most + 1 else ""
    return ", ".join(known[:most] if more else known) + more


def require(module: str, extra: str) -> ModuleType:
    """The imported module, or an error that names the extra which brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{error.name} is not installed; it comes with: pip install 'bathy[{extra}]'") from error


ADVICE = {
    errno.ENOSPC: "no space left on the disk; free some and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EFBIG: "the file would be larger than the system allows; raise the limit and run the same command again",
    errno.EROFS: "the file system is read-only; choose a different place",
    errno.EACCES: "permission denied; change its permissions or choose a different place",
    errno.EPERM: "permission denied; change its permissions or choose a different place",
    errno.EISDIR: "it is a folder, not a file",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.ENOENT: "no such file or folder",
    errno.EEXIST: "something else is there already; choose a different place",
    errno.ELOOP: "it is a link that leads back to itself; choose a different place",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.EMFILE: "too many open files; raise the limit with ulimit -n",
}
"""What the operating system refused, and the way out."""


def explain(error: OSError | EOFError, path: object = None) -> str:
    """What the operating system or a truncated file said, as one line: which file, what happened, the way out."""
    if isinstance(error, EOFError):
        return f"{path or 'an input'} ends too early; it is damaged or incomplete"
    name = getattr(error, "filename", None) or path
    advice = ADVICE.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return f"{name}: {advice}" if name else advice


def system_error(error: BaseException) -> OSError | None:
    """What the operating system refused, where a library wrapped it into an error of its own (safetensors, SQLite, torch)."""
    match = re.search(r"(?:os error|Errno) (\d+)", str(error))
    if match:
        return OSError(int(match[1]), os.strerror(int(match[1])))
    return OSError(errno.ENOSPC, "") if re.search(r"database or disk is full|No space left", str(error)) else None


def file_size_limited() -> bool:
    """Whether this process may write files of some size only (ulimit -f)."""
    try:
        resource = importlib.import_module("resource")
    except ModuleNotFoundError:  # Windows has no such limits
        return False
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


KEY = r"(?:api|access|account|private|secret|shared|signing|encryption)[-_]?key"
SECRET_WORD = rf"(?:(?<![a-z])pass|password|passwd|passphrase|_pwd|secret|token|credentials?|{KEY})"
SECRET_VARIABLE = re.compile(
    rf"{SECRET_WORD}s?(?![a-z])|(?:^|_)(?:keys?|auth|bearer|pat|cookie)(?:_|$)|^pg_?pass$|_key", re.IGNORECASE
)
"""Names of environment variables whose value nobody should see; `TOKENIZERS_PARALLELISM` and `PWD` are no such names."""
SECRET_OPTION = re.compile(rf"^-[\w.-]*{SECRET_WORD}$", re.IGNORECASE)
IN_ADDRESS = re.compile(r"(?P<before>:)(?!//)(?P<value>\S+)(?P<after>@)|(?P<scheme>://)(?P<login>[^\s:/@'\"]+)(?=@)")
"""user:password@, also in an address that is not quite one, and a token that stands alone there."""
IN_SETTING = re.compile(
    rf"""(?P<before>(?:{SECRET_WORD}|\bpwd)=|(?:password|passwd|passphrase|secret|{KEY})['"]?:\s*|\b(?:bearer|authorization:\s*\w+)\s+)
    (?:(?P<quote>['"])(?P<quoted>.*?)(?P=quote)|(?P<value>[^\s&\#;'"]+))""",
    re.IGNORECASE | re.VERBOSE,
)
"""password=…, also quoted, in JSON, after a colon and in a header."""
SHORTEST = 4
"""Characters from which a secret is looked for in any text; shorter ones stand in too many words."""
HARMLESS = {"true", "false", "none", "null", "auto", "bathy"}
_secrets: set[str] = set()


def keep_secret(*values: str) -> None:
    """Have every message and file show *** in place of these values."""
    _secrets.update(value for value in values if len(value) >= SHORTEST)


def keep_address_secret(address: str) -> str:
    """The address without user and passwords, which are kept secret from now on; it may be malformed."""
    keep_secret(*_settings_in(address), *_settings_in(unquote(address)))
    scheme, slashes, rest = address.partition("://")
    login, at, host = (rest if slashes else address).rpartition("@")
    if not at:
        return redact(address)
    for password in (login.partition(":")[2], login.rpartition(":")[2]):  # the last: of an address that is not quite one
        keep_secret(password, unquote(password), quote(unquote(password), safe=""))
    if ":" in login or not slashes or scheme.startswith("http"):  # a database's login alone is a user, who is no secret
        keep_secret(login)
    keep_secret(address)
    return redact(f"{scheme}{slashes}***@{host}" if slashes else f"***@{host}")


def redact(text: str) -> str:
    """The text with every secret as ***: passwords in addresses, secret settings, what secret environment variables hold."""
    for value in sorted(_secrets.union(*map(_secrets_in, os.environ, os.environ.values())), key=len, reverse=True):
        if len(value) >= SHORTEST and value.lower() not in HARMLESS:
            text = text.replace(value, "***")
    if "@" in text:
        text = IN_ADDRESS.sub(lambda found: f"{found['before']}***@" if found["before"] else "://***", text)
    return IN_SETTING.sub(lambda found: f"{found['before']}***", text)


@cache
def _secrets_in(name: str, value: str) -> list[str]:
    """What nobody should see of an environment variable: all of it, or the passwords in an address."""
    if SECRET_VARIABLE.search(name):
        return [value]
    logins = (
        [found["value"] or found["login"] for found in IN_ADDRESS.finditer(value)] if "://" in value and "@" in value else []
    )
    return [*logins, *map(unquote, logins), *_settings_in(value)]


def _settings_in(text: str) -> list[str]:
    """The values of secret settings in an address or a list of settings."""
    return [unquote(found["quoted"] or found["value"] or "") for found in IN_SETTING.finditer(text)]


def redact_words(words: Iterable[str]) -> list[str]:
    """The words of a command without secrets: also the word after an option such as --password."""
    shown, before = [], ""
    for word in words:
        shown.append("***" if SECRET_OPTION.search(before) else redact(keep_address_secret(word) if "://" in word else word))
        before = word
    return shown
