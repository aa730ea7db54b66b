"""The one boundary: every way to end becomes an exit code here, and no traceback ever reaches a terminal."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

USAGE, BUG, INTERRUPTED = 2, 70, 130
DEFAULT = "run"

# name -> (module, what it does): read for --help without importing any of the modules.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("recover", "Bring a target back (the default: `gpu-recover TARGET` is the same)."),
    "plan": ("plan", "What would be done now, why and to whom. Changes nothing."),
    "follow": ("follow", "Watch the run that goes on on a target."),
    "abort": ("follow", "Ask a run to stop in good order."),
    "check": ("check", "How targets are, many at once, for people and monitoring systems. Changes nothing."),
    "exporter": ("exporter", "Check again and again, and serve what was seen to Prometheus. Changes nothing."),
    "probe": ("look", "One look at a target, as JSON. Changes nothing."),
    "explain": ("explain", "What pasted logs, tables and errors mean, and what cures each."),
    "baseline": ("baseline", "How a target looks when nothing runs on it: save, show, propose."),
    "preflight": ("preflight", "Would this launch fit that machine? Proved from the engine's source installed there."),
    "budget": ("budget", "How large a host cache may be: the figures, the formula, the largest safe value."),
    "targets": ("targets", "The GPU guests on the clusters: host, address, devices, neighbours. Changes nothing."),
    "doctor": ("doctor", "Whether a recovery could be done: each failure with its fix. Changes nothing."),
    "notify": ("notify", "Who is told: send a test message, see what stands open."),
    "rehearse": ("rehearse", "The whole climb against a simulated machine."),
    "history": ("history", "Past runs, one by one or added up."),
    "report": ("report", "One run as a page, or as Markdown for a ticket."),
    "playbooks": ("playbooks", "The playbooks: list, show, check."),
    "breaker": ("breaker", "Whether anything is still done unattended: show, close."),
}
_VALUED = ("--config", "--state-dir")
_FLAGS = ("--help", "-h", "--version")


class Commands(click.Group):
    """Loads a command when it is called, and takes what is no command for a target."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"recover.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_default(args))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


def with_default(args: list[str]) -> list[str]:
    """The words with `run` put before the first that is neither a command nor an option of the group."""
    at = 0
    while at < len(args):
        word = args[at]
        if word in _FLAGS or word in COMMANDS:
            return args
        if word in _VALUED:
            at += 2
        elif word.startswith(tuple(f"{option}=" for option in _VALUED)):
            at += 1
        else:
            return [*args[:at], DEFAULT, *args[at:]]
    return args


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from recover import __version__

        click.echo(f"gpu-recover {__version__}")
        ctx.exit()


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    options_metavar="[--config FILE] [--state-dir DIR]",
    subcommand_metavar="TARGET... | COMMAND ...",
    epilog="Exit codes: 0 healthy or recovered, 2 usage or configuration, 10 exhausted, 11 blocked, 12 needs a person, "
    "13 out of time, 14 cannot tell, 15 recovered but the service is not back, 20 held by another run, 70 bug, "
    "130 interrupted.",
)
@click.option("--config", metavar="FILE", help="Configuration; else $GPU_RECOVER_CONFIG, ~/.config/…, /etc/….")
@click.option("--state-dir", metavar="DIR", help="Journals, baselines and locks; else $GPU_RECOVER_STATE.")
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
@click.pass_context
def cli(ctx: click.Context, config: str | None, state_dir: str | None) -> None:
    """Bring a GPU guest on Proxmox back from a hung inference server, prove it, and leave a record.

    \b
      gpu-recover node-174           recover it, asking before each step
      gpu-recover plan node-174      only say what would be done
    """
    ctx.ensure_object(dict)
    ctx.obj.update({k: v for k, v in (("config", config), ("state_dir", state_dir)) if v is not None})


def run(argv: Sequence[str] | None = None, app: object = None) -> int:
    """The whole program, as an exit code. `app`: another composition than the configuration's, see wiring.App."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character is no reason to fail
    said: dict[str, Any] = {"app": app} if app is not None else {}
    try:
        args = None if argv is None else list(argv)
        code = cli.main(args=args, prog_name="gpu-recover", standalone_mode=False, obj=said)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return 0
    except Exception as error:
        return _ended_by(error, said.get("state_dir"))


def _ended_by(error: Exception, state_dir: str | None) -> int:
    """Expected errors say what is wrong and how to mend it; the rest is a bug of ours, and says so."""
    from recover.cli.trouble import bug, expected

    problems = expected(error)
    if problems is None:
        bug(error, state_dir)
        return BUG
    return USAGE


def _forget_stdout() -> None:
    """The reader left: nothing more is written, also not when Python closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    gc.set_threshold(50_000)  # else it walks over and over what is just being loaded: 30 ms, and nothing is freed
    code = run()
    gc.freeze()  # the interpreter's last collections would walk all that was imported: 40 ms, and nothing is gained
    sys.exit(code)


if __name__ == "__main__":
    main()
