"""[notify] and [hooks]: whole or refused with every problem at its path; a URL in the file is never repeated."""

from __future__ import annotations

import tomllib

import pytest

from recover.core.config import parse_config
from recover.core.config_table import SecretCommand, SecretEnv
from recover.model.notice import Event, HookEvent
from recover.model.verdict import Scope
from recover.model.watch import Status

WHOLE = """
[notify.oncall]
url = { command = ["pass", "show", "pager"] }
events = ["state", "gave-up"]
at_least = "critical"
remind = "4h"
[notify.chat]
url = { env = "CHAT_URL" }
[hooks]
before-disruption = { command = ["kubectl", "cordon", "{target}"], deadline = "2m", required = false, at_least = "gpu" }
state-change = { command = ["/usr/local/bin/tell"] }
"""


def problems(text: str) -> tuple[str, ...]:
    return parse_config(tomllib.loads(text))[1]


def test_all_keys_are_understood_and_what_is_left_out_has_its_default() -> None:
    config, wrong = parse_config(tomllib.loads(WHOLE))
    assert wrong == () and config is not None
    oncall, chat = config.notify["oncall"], config.notify["chat"]
    assert oncall.url == SecretCommand(("pass", "show", "pager")) and chat.url == SecretEnv("CHAT_URL")
    assert oncall.events == {Event.STATE, Event.GAVE_UP} and chat.events == set(Event)
    assert (oncall.at_least, chat.at_least) == (Status.CRITICAL, Status.WARNING)
    assert (oncall.remind_s, chat.remind_s) == (4 * 3600, None)
    before, change = config.hooks[HookEvent.BEFORE_DISRUPTION], config.hooks[HookEvent.STATE_CHANGE]
    assert before.command == ("kubectl", "cordon", "{target}") and before.deadline_s == 120
    assert (before.required, before.at_least) == (False, Scope.GPU)
    assert (change.required, change.deadline_s, change.at_least) == (True, 60, Scope.PROCESS)
    assert HookEvent.GAVE_UP not in config.hooks


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("[notify.a]", "notify.a.url", "missing"),
        ('[notify.a]\nurl = "json://user:hunter2@h"', "notify.a.url", "a secret may not stand in the configuration"),
        ('[notify.a]\nurl = { env = "U" }\nevents = ["gaveup"]', "notify.a.events[0]", "did you mean 'gave-up'?"),
        ('[notify.a]\nurl = { env = "U" }\nevents = []', "notify.a.events", "nothing would be told"),
        ('[notify.a]\nurl = { env = "U" }\nat_least = "ok"', "notify.a.at_least", "none of warning, unknown, critical"),
        ('[notify.a]\nurl = { env = "U" }\nremind = "1s"', "notify.a.remind", "expected 300s"),
        ('[notify.a]\nurl = { env = "U" }\nurls = []', "notify.a.urls", "did you mean 'url'?"),
        ('notify = ["json://h"]', "notify", "expected tables"),
        ('[hooks]\nbefore_disruption = 1', "hooks.before_disruption", "did you mean 'before-disruption'?"),
        ("[hooks.gave-up]", "hooks.gave-up.command", "missing"),
        ('[hooks.gave-up]\ncommand = "drain node"', "hooks.gave-up.command", "expected a list"),
        ('[hooks.gave-up]\ncommand = ["bin/x"]', "hooks.gave-up.command", "is relative"),
        ('[hooks.gave-up]\ncommand = ["x"]\nrequired = true', "hooks.gave-up.required", "unknown key"),
        ('[hooks.gave-up]\ncommand = ["x"]\ndeadline = "2h"', "hooks.gave-up.deadline", "expected 1s to 1800s"),
        ('[hooks.before-disruption]\ncommand = ["x"]\nrequired = 1', "hooks.before-disruption.required", "or false"),
        ('[hooks.before-disruption]\ncommand = ["x"]\nat_least = "vms"', "hooks.before-disruption.at_least", "'vm'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_path_and_no_secret_is_repeated(text: str, path: str, says: str) -> None:
    wrong = problems(text)
    assert any(p.startswith(f"{path}: ") and says in p for p in wrong), wrong
    assert "hunter2" not in "".join(wrong)
