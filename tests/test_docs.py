"""The pages say what the code does: commands, options, steps, keys, guards, privileges, links; and they say all of it.

Seen to fail on: an option renamed in a page, a step's default changed, a key left out of the example, a guard left out,
a link to a heading that is gone, a scenario named that isn't there.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from recover.core.config import Config, parse_config
from recover.core.guards import GUARDS
from recover.core.playbook import parse
from recover.core.report.result import EXIT_CODES, SERVICE_NOT_BACK, held
from recover.edge.playbooks import shipped_names
from recover.model.ladder import Playbook
from recover.model.record import EndKind, Entry
from recover.model.verdict import Scope
from recover.steps.startable import PRIVILEGES
from recover.steps.table import ALL_STEPS
from tests import docs
from tests.lab import scenario
from tests.lab.__main__ import parser as lab_parser

PAGES = {str(page.relative_to(docs.ROOT)): page.read_text() for page in docs.pages()}
REFRESH = "the code has changed: run `python -m tests.docs` and read what it wrote"
FORBIDDEN = ("/wo" + "rk/", "../sha" + "red", "/fa" + "rm/", "/root/.py" + "env", "TO" + "DO", "FIX" + "ME")


def page(name: str) -> str:
    return PAGES[f"docs/{name}.md"]


def block(text: str, language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)[number]


@pytest.mark.parametrize("name", PAGES)
def test_the_made_parts_are_as_the_code_is(name: str) -> None:
    assert docs.renewed(PAGES[name]) == PAGES[name], REFRESH


# -- commands


@pytest.mark.parametrize("name", PAGES)
def test_every_call_in_a_page_is_one_that_exists(name: str) -> None:
    wrong = {" ".join(call): bad for call in docs.calls(PAGES[name]) if (bad := docs.unknown_in(call))}
    assert not wrong


def test_calls_are_found_and_a_wrong_one_is_seen() -> None:
    assert len(list(docs.calls(PAGES["README.md"]))) > 12
    assert docs.unknown_in(["plan", "node-174", "--aprove", "vm"]) == ["--aprove"]
    assert docs.unknown_in(["node-174", "--approve", "vm"]) == []
    assert docs.unknown_in(["baseline", "save", "node-174", "--yes"]) == ["--yes"]


@pytest.mark.parametrize("words", [words for words, _ in docs.walk(docs.cli)], ids=" ".join)
def test_every_command_is_in_the_commands_page_and_in_the_readme(words: tuple[str, ...]) -> None:
    assert f"## `gpu-recover {' '.join(words)}`" in page("commands")
    table = PAGES["README.md"].partition("## Commands")[2]
    assert f"gpu-recover {words[0]}" in table and words[-1] in table


def test_every_option_in_the_text_belongs_to_a_command() -> None:
    ours = {name for _, command in docs.walk(docs.cli) for p in command.params for name in p.opts}
    ours |= {name for p in docs.cli.params for name in p.opts} | {"--help"}
    lab = {"--dir", "--idle", "--keep", "--repeats"}
    others = {"--privsep", "--privs", "--users", "--tokens", "--roles", "--propagate", "--comment", "--gpu-reset"}
    others |= {"--hicache-size", "--strict", "--tp"}
    said = {option for text in PAGES.values() for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}
    assert said - ours - lab - others == set()


def test_exit_codes_are_all_said_and_are_right() -> None:
    rows = dict(re.findall(r"^\| (\d+) \|([^|]*)\|", page("commands"), re.M))
    for kind, code in EXIT_CODES.items():
        assert kind.value in rows[str(code)], kind
    assert "recovered" in rows[str(SERVICE_NOT_BACK)]
    readme = re.findall(r"^\| (\d+) \|", PAGES["README.md"], re.M)
    assert sorted(readme, key=int) == sorted(rows, key=int)
    assert {str(code) for code in EXIT_CODES.values()} | {"2", "15", "70"} == set(rows)
    assert len(EXIT_CODES) == len(EndKind)


def test_every_field_of_the_result_is_in_the_example_and_explained() -> None:
    import json

    shown = json.loads(block(page("commands"), "json"))
    assert set(shown) == set(held("t", "w", "c"))
    after = page("commands").partition("## The result as JSON")[2]
    assert all(f"`{field}`" in after for field in shown if field not in ("schema", "target", "run"))


def test_every_scope_is_explained() -> None:
    for scope in Scope:
        assert f"| {scope.word} |" in page("ladder") and f"`{scope.word}`" in page("commands")


# -- steps and playbooks


def test_every_step_has_a_chapter_in_the_order_of_the_ladder() -> None:
    chapters = re.findall(r"^### `([\w-]+)`", page("ladder"), re.M)
    assert set(chapters) == set(ALL_STEPS), REFRESH
    assert [ALL_STEPS[c].scope for c in chapters] == sorted(ALL_STEPS[c].scope for c in chapters)
    for name in chapters:
        chapter = page("ladder").partition(f"### `{name}`")[2].partition("\n##")[0]
        assert f"<!-- step {name}: " in chapter and "Proof: " in chapter


def test_every_playbook_is_named() -> None:
    table = page("ladder").partition("## Playbooks")[2]
    assert set(re.findall(r"^\| `([\w-]+)` \| [^`|]*\|$", table, re.M)) == set(shipped_names())


def test_the_example_playbook_is_whole_and_every_key_is_in_it_and_in_the_table() -> None:
    data = tomllib.loads(block(page("ladder"), "toml"))
    assert isinstance(parse(data), Playbook)
    wrong: dict[str, Any] = {"name": "x", "rung": [{"step": "end-workers"}]}
    wrong |= {key: {"?": 1} for key in ("limits", "after", "unattended")}
    problems = parse({**wrong, "?": 1})
    assert isinstance(problems, tuple)
    listed = [p for p in problems if "choose from " in p]
    known = {p.partition("?")[0]: set(p.partition("choose from ")[2].split(", ")) for p in listed}
    table = set(re.findall(r"^\| `([\w.]+)` \|", page("ladder"), re.M))
    assert known["limits."] == set(data["limits"]) and known["after."] == set(data["after"])
    assert known["unattended."] == set(data["unattended"])
    for prefix in ("limits.", "after.", "unattended."):
        assert {prefix + key for key in known[prefix]} <= table
    assert known[""] == set(data) and {"rung.step", "rung.attempts", "rung.settle", "name", "about"} <= table


# -- configuration


def known_keys(data: dict[str, Any], path: str) -> set[str]:
    """The keys of one table, as the refusal of an unknown one lists them."""
    _, problems = parse_config(data)
    line = next(p for p in problems if p.startswith(f'{path}"?"' if path == "" else f'{path}."?"'))
    return set(line.partition("(known: ")[2].rstrip(")").split(", "))


KEYS = {
    "notify.oncall": known_keys({"notify": {"oncall": {"?": 1}}}, "notify.oncall"),
    "hooks": known_keys({"hooks": {"?": 1}}, "hooks"),
    "hooks.before-disruption": known_keys({"hooks": {"before-disruption": {"?": 1}}}, "hooks.before-disruption"),
    "clusters.pve": known_keys({"clusters": {"pve": {"?": 1}}}, "clusters.pve"),
    "ssh": known_keys({"ssh": {"?": 1}}, "ssh"),
    "targets.node-174": known_keys({"targets": {"node-174": {"?": 1}}}, "targets.node-174"),
    "targets.node-174.expect": known_keys({"targets": {"node-174": {"expect": {"?": 1}}}}, "targets.node-174.expect"),
    "watch": known_keys({"watch": {"?": 1}}, "watch"),
    "fleet": known_keys({"fleet": {"?": 1}}, "fleet"),
}


def test_the_example_configuration_is_whole() -> None:
    for text in (page("configuration"), PAGES["README.md"]):
        config, problems = parse_config(tomllib.loads(_dedent(block_of(text, "toml"))))
        assert problems == () and isinstance(config, Config)


@pytest.mark.parametrize("path", KEYS)
def test_every_key_is_in_the_example_and_explained(path: str) -> None:
    data = tomllib.loads(block(page("configuration"), "toml"))
    found: Any = data
    for word in path.split("."):
        found = found[word]
    if path == "clusters.pve":
        found = {**found, **data["clusters"]["lab"]}
    assert set(found) == KEYS[path]
    table = set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| `[\w-].*?\|", page("configuration"), re.M))))
    table |= set(re.findall(r"^\| `([\w-]+)` \|", page("notifications"), re.M))
    assert KEYS[path] - {"ssh", "expect"} <= table


def test_every_key_of_a_maintenance_window_is_in_the_example_and_explained() -> None:
    data = tomllib.loads(block(page("configuration"), "toml"))
    keys = known_keys({"maintenance": [{"?": 1}]}, "maintenance[0]")
    assert set().union(*data["maintenance"]) == keys
    assert all(f"`{key}`" in page("configuration") for key in keys)


def test_the_keys_of_the_whole_file_are_in_the_example() -> None:
    assert set(tomllib.loads(block(page("configuration"), "toml"))) == known_keys({"?": 1}, "")


def test_the_example_configuration_shows_every_form_of_a_secret() -> None:
    example = block(page("configuration"), "toml")
    assert all(re.search(rf"{{ {form} = ", example) for form in ("file", "env", "command"))


def block_of(text: str, language: str) -> str:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.S | re.M)[0]


def _dedent(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


# -- safety, privileges, journal, lab


def test_every_guard_is_explained() -> None:
    found = {guard.name for guard in GUARDS} - {"devices"}  # that one names what it found
    for source in (
        *Path(docs.ROOT / "recover/steps").glob("*.py"),
        *Path(docs.ROOT / "recover/core/guards").glob("*.py"),
    ):
        found |= set(re.findall(r'(?:Refuse|open_question)\(\s*"([a-z-]+)"', source.read_text()))
    said = set(re.findall(r"`([a-z-]+)`", page("safety").partition("## Guards")[2].partition("\n## ")[0]))
    assert found - said == set()


def test_every_privilege_that_a_refusal_names_is_in_both_recipes_and_in_the_table() -> None:
    recipes = re.findall(r"```sh\n(.*?)```", page("privileges"), re.S)
    assert len(recipes) == 2
    named = {word for text in PRIVILEGES.values() for word in re.findall(r"\b[A-Z]\w+\.[A-Z]\w+", text)}
    assert {"VM.Audit", "Sys.Audit", "Datastore.Audit", "Mapping.Audit"} <= named
    for privilege in named:
        assert all(privilege in recipe for recipe in recipes), privilege
        assert f"| `{privilege}` |" in page("privileges"), privilege
    assert "VM.GuestAgent.Audit" in recipes[0] and "VM.Monitor" not in recipes[0]
    assert "VM.Monitor" in recipes[1] and "VM.GuestAgent" not in recipes[1]


def test_the_recipes_give_what_is_given_and_nothing_that_is_said_to_be_never_needed() -> None:
    never = page("privileges").partition("Never needed: ")[2].partition("Don't")[0]
    forbidden = [word.rstrip("*") for word in re.findall(r"`([^`]+)`", never)]
    for recipe in re.findall(r"```sh\n(.*?)```", page("privileges"), re.S):
        assert forbidden and not any(word in recipe for word in forbidden)
        made = set(re.findall(r"role add (\w+)", recipe))
        assert made == set(re.findall(r"--roles (\w+)", recipe))


def test_every_kind_of_entry_is_explained() -> None:
    said = re.findall(r"`(\w+)`", page("journal"))
    assert {kind.__name__ for kind in get_args(Entry)} <= set(said)


def test_the_labs_commands_are_all_said() -> None:
    commands = next(a for a in lab_parser()._actions if a.choices and "up" in a.choices).choices
    assert commands is not None
    said = set(re.findall(r"^\| `(\w+)", page("lab"), re.M))
    assert set(commands) <= said
    for name in re.findall(r"tests\.lab up ([\w-]+)", "".join(PAGES.values())):
        assert name in scenario.names()


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (docs.ROOT / "Makefile").read_text(), re.M))
    named = {name for text in PAGES.values() for name in re.findall(r"^make (\w+)|`make (\w+)`", text, re.M)}
    assert {one or other for one, other in named} <= targets
    assert PAGES["README.md"].index("make demo") < 100 and PAGES["README.md"].index("make test") < 200


# -- links and words


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    broken = []
    for where in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        if where.startswith(("https://", "mailto:")):
            continue
        path, _, part = where.partition("#")
        target = ((docs.ROOT / name).parent / path).resolve() if path else docs.ROOT / name
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if target.suffix == ".md" and part else []
        if not target.exists() or (part and part not in map(anchor, headings)):
            broken.append(where)
    assert not broken


@pytest.mark.parametrize("name", PAGES)
def test_paths_of_the_repository_that_are_named_exist(name: str) -> None:
    named = re.findall(r"`((?:recover|tests|playbooks|tools|docs)/[\w./-]*)`", PAGES[name])
    assert [path for path in named if not (docs.ROOT / path).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_no_word_that_does_not_belong_here(name: str) -> None:
    assert [word for word in FORBIDDEN if word.lower() in PAGES[name].lower()] == []


def test_every_page_is_in_the_readmes_list() -> None:
    for name in PAGES:
        assert name == "README.md" or f"]({name})" in PAGES["README.md"], name
