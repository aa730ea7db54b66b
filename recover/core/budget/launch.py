"""A launch is read from what people write: what can't be read for certain is named in it, and nothing is made up.

`parse` takes text (a command, a script, a systemd unit, a compose file, a Kubernetes manifest), `from_argv` the words
of a process. Files that a launch names are given by the caller as texts; those that are missing are listed in
`Launch.files`.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace

from recover.core.budget import compose, manifest, repeats, settings, systemd
from recover.core.budget.commands import HEARD, SHELLS, Found, base, script_file, shell_text, takes_stdin
from recover.core.budget.containers import find, image_version
from recover.core.budget.kinds import kind
from recover.core.budget.model import Launch, Problem, Unresolved
from recover.core.budget.options import Word, read_options
from recover.core.budget.shell import Command, Lexer
from recover.core.budget.shell_holes import as_written, plain, why_unclear
from recover.core.budget.version import Version
from recover.core.clean import clean

Files = Mapping[str, str]
LONGEST = 1_000_000
DEEPEST = 3  # shells in shells
_FENCE = re.compile(r"^[ \t]*```[\w-]*[ \t]*$", re.MULTILINE)
_DEVICES = re.compile(r"\w+_VISIBLE_DEVICES\b")  # that they are picked is all that matters
_NOTED = 4  # reasons that are told where nothing was found
KNOWN = "known: python -m sglang.launch_server, sglang serve, vllm serve, trtllm-serve, llama-server, lmcache server"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a command was found."""

    wrapper: str = ""
    where: str = ""
    text: str = ""
    env: tuple[tuple[str, str], ...] = ()
    memory_limit: int | None = None
    assumed: tuple[str, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()


def parse(
    text: str,
    *,
    files: Files | None = None,
    env: Mapping[str, str] | None = None,
    version: Version | None = None,
    engine: str = "",
) -> tuple[Launch, ...]:
    """Every server that the text would start. `version` is that of `engine`, or of whatever engine it is.

    Raises Problem for broken text and for text that starts none.
    """
    if len(text) > LONGEST:
        raise Problem("the launch text is longer than 1 MB")
    reader = _Reader({} if files is None else files, version, engine)
    try:
        found = reader.document(text, env or {})
    except RecursionError:
        raise Problem("the launch text is nested too deeply") from None
    if not found:
        noted = tuple(dict.fromkeys(reader.noted))[:_NOTED]
        raise Problem("no command here starts a server that is known", *noted, hint=KNOWN)
    return tuple(found)


def from_argv(
    argv: Iterable[str],
    *,
    files: Files | None = None,
    env: Mapping[str, str] | None = None,
    version: Version | None = None,
) -> Launch | None:
    """The server that these words start; None if they start none that is known. Total."""
    words = [Word(w) for w in argv]
    origin = Origin(env=tuple((env or {}).items()))
    try:
        return next(iter(_Reader({} if files is None else files, version).command(words, origin, 0)), None)
    except (Problem, RecursionError):
        return None  # the text after `bash -c` is broken: a shell would not start it either


class _Reader:
    """Reads texts. `files` gains those that a script writes; `noted` says what was met that can't be followed."""

    def __init__(self, files: Files, version: Version | None, engine: str = "") -> None:
        self.written: dict[str, str] = {}
        self.files: MutableMapping[str, str] = ChainMap(self.written, files)  # type: ignore[arg-type]  # only read
        self.version, self.engine = version, engine
        self.noted: list[str] = []

    def document(self, text: str, env: Mapping[str, str], depth: int = 0) -> list[Launch]:
        """A text of whatever kind."""
        text = plain(text)
        match kind(text):
            case "unit":
                return self._unit(text)
            case "compose":
                return self._compose(text, env)
            case "manifest":
                return self._manifest(text)
        text = _FENCE.sub(lambda m: " " * len(m[0]), text)
        found = self.text(text, Origin(text=text), env, depth)
        if not found and depth == 0:  # what it writes for another program to run: a unit, a compose file, a script
            for written, name in {text: name for name, text in self.written.items()}.items():
                found += [replace(launch, text="") for launch in self._inner(name, written, env)]
        return found

    def _inner(self, name: str, text: str, env: Mapping[str, str]) -> list[Launch]:
        try:
            return self.document(text, env, 1)
        except Problem as error:
            self.noted += [f"{clean(name, 120)}: {problem}" for problem in error.problems]
            return []

    # --- one command ----------------------------------------------------------------------------------------------

    def command(self, words: list[Word], origin: Origin, depth: int, stdin: str = "") -> list[Launch]:
        found = find(words)
        if found is not None:
            return self._found(found, origin, depth)
        if depth > DEEPEST:
            return []
        around = {**dict(origin.env), **_assignments(words)}
        inside = replace(origin, text="")
        inner = shell_text(words)
        if inner is not None:
            return self.text(inner.text, inside, around, depth + 1)
        if stdin and takes_stdin(words):
            return self.text(stdin, inside, around, depth + 1)
        return self._script(words, inside, around, depth)

    def _script(self, words: list[Word], origin: Origin, env: Mapping[str, str], depth: int) -> list[Launch]:
        """What a script that the command runs would start, if its text was given."""
        run = script_file(words)
        if run is None:
            return []
        name, args = run
        shown = clean(name, 120)
        named = name.endswith((".sh", ".bash", ".zsh"))
        by_shell = any(base(word.text) in SHELLS for word in words)
        if not named and not by_shell and origin.wrapper != "systemd":
            return []
        if name not in self.files:
            self.noted.append(f"{shown} is run, and its text was not given")
            return []
        text = self.files[name]
        if not re.match(r"#!.*\b(?:ba|da|z|k|a)?sh\b", text) and not named:
            return []
        try:
            return self.text(text, replace(origin, where=origin.where or shown), env, depth + 1, args)
        except Problem as error:
            raise Problem(*(f"{shown}: {problem}" for problem in error.problems)) from None

    def _found(self, found: Found, origin: Origin, depth: int) -> list[Launch]:
        if found.script is None:
            return [self.build(found, origin)]
        if depth > DEEPEST:
            return []
        env, missing, unclear = self._environment(found, origin)
        inside = self.text(found.script.text, replace(origin, text="", env=()), env, depth + 1)
        return [self._contained(launch, found, env, missing, unclear) for launch in inside]

    def _contained(
        self, launch: Launch, found: Found, env: Mapping[str, str], missing: list[str], unclear: list[Unresolved]
    ) -> Launch:
        """What a container's shell starts, with what the container gives it."""
        return replace(
            launch,
            version=image_version(found.image, launch.engine) or launch.version,
            env=(*((n, v) for n, v in env.items() if n.startswith(HEARD)), *launch.env),
            image=found.image,
            wrapper=found.wrapper,
            memory_limit=found.memory_limit or launch.memory_limit,
            shm_size=found.shm_size or launch.shm_size,
            unresolved=(*launch.unresolved, *unclear),
            files=(*launch.files, *missing),
        )

    def build(self, found: Found, origin: Origin) -> Launch:
        """The launch of an engine that was found in a command."""
        counted = found.version or (self.version if self.engine in {"", found.engine} else None)
        env, missing, unclear = self._environment(found, origin)
        read = read_options(found.engine, counted, found.words)
        more = settings.from_files(found.engine, counted, read.options, env, self.files, missing)
        unread = [Unresolved(name, "the file was not read", matters=True) for name in missing]
        return Launch(
            engine=found.engine,
            version=counted,
            options=tuple(more[0]),
            positional=tuple(read.positional),
            env=tuple((name, value) for name, value in env.items() if name.startswith(HEARD)),
            unresolved=(*unclear, *origin.unresolved, *read.unresolved, *more[1], *unread),
            assumed=origin.assumed,
            argv=tuple(w.text for w in found.words),
            interpreter=found.interpreter,
            wrapper=found.wrapper or origin.wrapper,
            where=origin.where,
            image=found.image,
            text=origin.text,
            memory_limit=found.memory_limit or origin.memory_limit,
            shm_size=found.shm_size,
            membind=found.membind,
            files=tuple(missing),
        )

    def _environment(self, found: Found, origin: Origin) -> tuple[dict[str, str], list[str], list[Unresolved]]:
        """What the server is given, the files that it stands in and that were not read, and what is not known."""
        around = dict(origin.env)
        if found.image:  # a container gets what it is given, and nothing else of what is around
            around = {name: around[name] for name in found.passed if name in around}
        env, missing = {**around, **dict(found.env)}, []
        for name in found.env_files:
            if name not in self.files:
                missing.append(name)
                continue
            for key, value in systemd.environment_lines(self.files[name]):
                env.setdefault(key, value)
        said = [(n, "it is not set here") for n in found.passed if n not in env]
        said += [(f"{n}={as_written(v)}", why_unclear(v)) for n, v in env.items() if why_unclear(v)]
        heard = [*found.unclear, *((word, why) for word, why in said if word.startswith(HEARD))]
        unclear = [Unresolved(clean(word, 120), why, matters=True) for word, why in heard if not _DEVICES.match(word)]
        known = {n: as_written(v) for n, v in env.items() if not why_unclear(v) or _DEVICES.match(n)}
        return known, missing, unclear

    # --- texts ----------------------------------------------------------------------------------------------------

    def text(
        self, text: str, origin: Origin, env: Mapping[str, str], depth: int, args: list[str] | None = None
    ) -> list[Launch]:
        commands = Lexer(text, env, self.files, args=args).read()
        wrapper = origin.wrapper or ("script" if len(commands) > 1 and depth == 0 else "")
        found: list[Launch] = []
        for at, command in enumerate(commands):
            self._writes(command)
            own = replace(
                origin,
                wrapper=wrapper,
                where=origin.where or (f"line {command.line}" if len(commands) > 1 else ""),
                env=(*env.items(), *origin.env, *command.env),
                assumed=(*origin.assumed, *command.assumed),
            )
            launches = self.command(command.words, own, depth, command.io.reads)
            found += repeats.marked(launches, commands, at)
            if not launches:
                self.noted += repeats.unfollowed(command)
        return found

    def _writes(self, command: Command) -> None:
        """A file whose text stands in a script: `cat > FILE <<EOF`, `tee FILE <<EOF`."""
        made = repeats.written(command)
        if made is None:
            return
        name, text = made
        bare = name.removeprefix("./")
        for spelled in (name,) if name.startswith("/") else (f"./{bare}", bare):
            if text is None:
                self.written.pop(spelled, None)
            else:
                before = self.written.get(spelled, "") if command.io.appends else ""
                self.written[spelled] = before + text

    def _unit(self, text: str) -> list[Launch]:
        unit = systemd.read(text, self.files)
        found: list[Launch] = []
        unread = tuple(Unresolved(name, "the file was not read", matters=True) for name in unit.missing)
        for line, words in unit.starts:
            origin = Origin(
                *("systemd", f"{unit.setting}, line {line}", text),
                env=tuple(unit.env.items()),
                memory_limit=unit.memory_limit,
                unresolved=unread,
            )
            for launch in self.command(words, origin, 0):
                found.append(replace(launch, files=(*launch.files, *unit.missing)))
        return found

    def _compose(self, text: str, env: Mapping[str, str]) -> list[Launch]:
        found: list[Launch] = []
        for service in compose.read(text, self.files, env):
            origin = Origin("compose", f"service {service.name}", assumed=tuple(service.assumed))
            if (state := service.found()) is not None:
                found += [
                    replace(launch, copies=service.copies, stays=True) for launch in self._found(state, origin, 1)
                ]
        return found

    def _manifest(self, text: str) -> list[Launch]:
        found: list[Launch] = []
        for pod in manifest.read(text):
            origin = Origin("kubernetes", pod.where, assumed=tuple(pod.assumed))
            found += [replace(launch, stays=True) for launch in self._found(pod.found, origin, 1)]
        return found


def _assignments(words: list[Word]) -> dict[str, str]:
    pairs = (w.text.partition("=") for w in words if not w.unclear and not w.text.startswith("-"))
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}
