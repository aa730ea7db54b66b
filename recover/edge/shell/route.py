"""The way to a machine is decided before anything is dialled: settings, then the ssh configuration, then defaults."""

from __future__ import annotations

import getpass
import glob
import os
import re
import shlex
import socket
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from recover.edge.shell.failures import ShellError
from recover.edge.shell.settings import SshSettings
from recover.model.contact import Failure

_SAFE_HOST = re.compile(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*")
_SAFE_USER = re.compile(r"[A-Za-z0-9_.@\\+][A-Za-z0-9_.@\\+$-]*")
_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_DEFAULT_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_EVERYONES_KNOWN = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_MATCHABLE = {"all", "canonical", "final", "host", "originalhost", "user", "localuser", "exec"}
_MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class Hop:
    """One SSH server on the way; the last one is the machine itself."""

    address: str
    port: int
    user: str
    key_name: str  # as known_hosts lists it
    key_port: int | None  # None: key_name is a HostKeyAlias
    identities: tuple[str, ...]
    certificates: tuple[str, ...]
    only_these: bool  # IdentitiesOnly
    agent: str | None  # the ssh-agent's socket
    known_hosts: tuple[str, ...]
    command: str | None = None  # a ProxyCommand that leads to it

    @property
    def where(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class _Wish:
    """What outranks the configuration for one hop."""

    host: str
    port: int | None = None
    user: str | None = None
    identity: str | None = None
    fallback_identity: str | None = None
    known_hosts: str | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """An ssh configuration with all that it includes."""

    config: Any
    runs_programs: bool  # to find out what it says: `Match exec`


def plan(settings: SshSettings, parsed: Parsed | None = None) -> tuple[Hop, ...]:
    """All hops, the nearest first. Raises ShellError(CONFIG) for whatever is wrong with our own side."""
    try:
        config = (parsed or read_config(settings.ssh_config)).config
        wish = _Wish(settings.host, settings.port, settings.user, settings.identity_file, None, settings.known_hosts)
        return _hops(config, wish, None, 0)
    except ShellError:
        raise
    except Exception as error:  # the parser raises what it likes over a strange file; all of it is CONFIG
        raise ShellError(Failure.CONFIG, f"ssh configuration {settings.ssh_config}: {error}") from None


def _hops(config: Any, wish: _Wish, before: tuple[Hop, ...] | None, depth: int) -> tuple[Hop, ...]:
    """`before` replaces the host's own proxy: in a list of jumps each one is reached through those before it."""
    if depth > _MAX_HOPS:
        raise ShellError(Failure.CONFIG, f"ProxyJump of {wish.host} goes in circles")
    options = config.lookup(wish.host)
    hop = _hop(options, wish)
    if before is not None:
        return (*before, hop)
    jump = options.get("proxyjump")
    if jump and jump.lower() != "none":
        return (*_jumps(config, _expand(jump, hop, wish.host), wish, depth), hop)
    command = options.get("proxycommand")
    if command and command.lower() != "none":
        return (replace(hop, command=_expand(command, hop, wish.host)),)
    return (hop,)


def _jumps(config: Any, chain: str, wish: _Wish, depth: int) -> tuple[Hop, ...]:
    hops: tuple[Hop, ...] | None = None
    for word in chain.split(","):
        user, host, port = _parse_jump(word.strip())
        identity = wish.identity or wish.fallback_identity
        step = _Wish(host, port, user, None, identity, wish.known_hosts)
        hops = _hops(config, step, hops, depth + 1)
    assert hops is not None
    return hops


def _parse_jump(word: str) -> tuple[str | None, str, int | None]:
    found = re.fullmatch(r"(?:ssh://)?(?:([^@]+)@)?(\[[^\]]+\]|[^:\[\]]+)(?::(\d+))?/?", word)
    if found is None:
        raise ShellError(Failure.CONFIG, f"ProxyJump can't be understood: {word}")
    user, host, port = found.groups()
    return user, host.strip("[]"), int(port) if port else None


def _hop(options: Any, wish: _Wish) -> Hop:
    address = str(options.get("hostname") or wish.host)
    port = wish.port or int(options.get("port", 22))
    user = wish.user or options.get("user") or getpass.getuser()
    # The address may have come from a machine, and a ProxyCommand hands it to a shell.
    if not _SAFE_HOST.fullmatch(address) or not _SAFE_USER.fullmatch(user) or not 0 < port < 65536:
        raise ShellError(Failure.CONFIG, f"not an address, user and port that we would use: {user}@{address}:{port}")
    alias = options.get("hostkeyalias")
    bare = Hop(address, port, user, alias or address, None if alias else port, (), (), False, None, ())
    expand = [_expand(word, bare, wish.host) for word in options.get("identityfile", [])]
    named = (wish.identity,) if wish.identity else tuple(expand)
    extra = (wish.fallback_identity,) if wish.fallback_identity else ()
    certificate = options.get("certificatefile")
    return replace(
        bare,
        identities=tuple(_home(path) for path in (*named, *extra) or _DEFAULT_KEYS if path.lower() != "none"),
        certificates=(_home(_expand(certificate, bare, wish.host)),) if certificate else (),
        only_these=options.get("identitiesonly", "no").lower() == "yes",
        agent=_agent(options.get("identityagent"), bare, wish.host),
        known_hosts=_known(options, wish, bare),
    )


def _known(options: Any, wish: _Wish, hop: Hop) -> tuple[str, ...]:
    """The setting replaces the user's files only: what the machine's administrator revoked stays revoked."""
    said = options.get("userknownhostsfile")
    users = [wish.known_hosts] if wish.known_hosts else shlex.split(said) if said else _DEFAULT_KNOWN
    everyones = shlex.split(options.get("globalknownhostsfile", _EVERYONES_KNOWN))
    return tuple(_home(_expand(path, hop, wish.host)) for path in (*users, *everyones) if path.lower() != "none")


def _agent(said: str | None, hop: Hop, host: str) -> str | None:
    if said is None or said == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if said.lower() == "none":
        return None
    return os.environ.get(said[1:]) if said.startswith("$") else _home(_expand(said, hop, host))


def _home(path: str) -> str:
    return str(Path(path).expanduser())


def _expand(text: str, hop: Hop, host: str) -> str:
    """OpenSSH's % tokens, by what was decided and not by what the file says (the settings may have outranked it)."""
    name = socket.gethostname()
    tokens = {
        "%%": "%", "%h": hop.address, "%p": str(hop.port), "%r": hop.user, "%n": host, "%k": hop.key_name,
        "%u": getpass.getuser(), "%d": str(Path.home()), "%i": str(os.getuid()), "%l": name, "%L": name.split(".")[0],
    }  # fmt: skip
    if not _SAFE_HOST.fullmatch(host):
        raise ShellError(Failure.CONFIG, f"not a host name that we would use: {host}")
    return re.sub("%.", lambda token: tokens.get(token.group(), token.group()), text)


def read_config(path: str) -> Parsed:
    """Parsed once for as long as its text is the same. Raises ShellError(CONFIG)."""
    file = Path(path).expanduser()
    try:
        text = "\n".join(_lines(file, 0))
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise ShellError(Failure.CONFIG, f"ssh configuration can't be read: {path}: {error.strerror}") from None
    try:
        return _parsed(text)
    except Exception as error:  # the parser raises what it likes over a strange file
        raise ShellError(Failure.CONFIG, f"ssh configuration {path}: {error}") from None


@lru_cache(maxsize=8)
def _parsed(text: str) -> Parsed:
    from recover.edge.shell.library import for_match_exec, paramiko

    class Config(paramiko.SSHConfig):
        def __init__(self) -> None:
            super().__init__()
            # Only what selects the host is expanded by the parser; for the rest it would use the file's port and user.
            self.TOKENS_BY_CONFIG_KEY = {"hostname": ["%h"], "match-exec": ["%h", "%n", "%p", "%r", "%u"]}

    runs = re.search(r"^\s*match\b.*\bexec\b", text, re.I | re.M) is not None
    if runs:
        for_match_exec()
    return Parsed(Config.from_text(text), runs)


def _lines(file: Path, depth: int) -> list[str]:
    """The file with its Include lines replaced by what they include: the parser ignores them, silently."""
    lines: list[str] = []
    block = "Host *"
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        word, _, rest = line.strip().partition(" ")
        if word.lower() in ("host", "match"):
            block = line
            _refuse_unmatchable(word, rest, f"{file}:{number}")
        if word.lower() != "include" or depth > _MAX_HOPS:
            lines.append(line)
            continue
        for pattern in shlex.split(rest):
            whole = os.path.join(Path.home() / ".ssh", os.path.expanduser(pattern))
            for found in sorted(glob.glob(whole)):
                lines += _lines(Path(found), depth + 1)
        lines.append(block)  # an included file's Host lines end with it
    return lines


def _refuse_unmatchable(word: str, rest: str, source: str) -> None:
    """The parser takes a criterion that it doesn't know for one that matches; better no way than a wrong one."""
    if word.lower() != "match":
        return
    words = iter(shlex.split(rest))
    for criterion in words:
        name = criterion.removeprefix("!").lower()
        if name not in _MATCHABLE:
            detail = f"{source}: `Match {criterion}` is not understood here; give a file without it as ssh_config"
            raise ShellError(Failure.CONFIG, detail)
        if name not in ("all", "canonical", "final"):
            next(words, None)
