"""`gpu-recover budget`: figures in, the formula and the largest safe value out; bad figures are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recover.cli.budget import budget
from recover.core.budget.model import GIB
from tests.core.budget.builders import KIMI

FIGURES = ("--available", "445GiB", "--loading", "40GiB", "--margin", "25GiB", "--ranks", "8")


def run(*words: str) -> tuple[int, Result]:
    """The exit code as the program has it: a command's own number, or click's."""
    result = CliRunner().invoke(budget, list(words), standalone_mode=False)
    if isinstance(result.exception, Exception):
        return getattr(result.exception, "exit_code", 70), result
    return result.return_value, result


def said(result: Result) -> str:
    return getattr(result.exception, "message", "") or result.output


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(KIMI.fields))
    return str(path)


def test_the_largest_size() -> None:
    code, result = run(*FIGURES, "--engine", "sglang==0.5.9")
    assert code == 0
    assert "--hicache-size 51: 51 GB per rank" in result.output
    assert "/ 8 ranks = 47.5 GiB = 51.0 GB per rank" in result.output


def test_with_a_config_the_tokens(config: str) -> None:
    code, result = run(*FIGURES, "--engine", "sglang==0.5.9", "--hicache-size", "48", "--model-config", config)
    assert code == 0
    assert "683060 tokens, one page of 1 more: 683061" in result.output
    assert "384.0 GB (357.6 GiB)" in result.output


def test_the_incident_is_refused() -> None:
    code, result = run(*FIGURES, "--engine", "sglang==0.5.9", "--hicache-size", "300")
    assert code == 1
    assert result.output.startswith("does not fit: 2400 GB (2235 GiB)")


def test_as_json() -> None:
    code, result = run(*FIGURES, "--engine", "sglang==0.5.19", "--hicache-size", "48", "--json")
    found = json.loads(result.output)
    assert (code, found["fit"], found["totals"]["low"]) == (0, "tight", 384 * 10**9)
    assert (found["safe"][0]["value"], found["safe"][0]["fits"]) == (31, 51)
    assert found["available"] == 445 * GIB


def test_a_whole_command() -> None:
    words = (
        "-- python -m sglang.launch_server --tp 8 --enable-hierarchical-cache --hicache-size 300 --api-key sk-secret"
    )
    code, result = run("--available", "445GiB", "--engine", "sglang==0.5.9", *words.split())
    assert code == 1
    assert "--hicache-size 51" in result.output
    assert "sk-secret" not in result.output


def test_vllm_is_a_total() -> None:
    code, result = run(*FIGURES, "--engine", "vllm==0.33.0", "--shm", "200GiB")
    assert code == 0
    assert "--kv-offloading-size 200" in result.output


def test_nothing_fits() -> None:
    code, result = run("--available", "50GiB", "--ranks", "8", "--engine", "sglang==0.5.9")
    assert code == 1
    assert "even 1 does not do" in result.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--available", "445"), "--available: '445' has no unit"),
        (("--available", "445G"), "unclear unit"),
        (("--available", "-1GiB"), "negative"),
        (("--available", "0GiB"), "is nothing"),
        (("--available", "nan"), "no size"),
        (("--available", "nanGiB"), "no size"),
        (("--available", "9e99TiB"), "more than 1 PiB"),
        (("--margin", "x"), "--margin"),
        (("--loading", "40"), "--loading"),
        (("--ranks", "0"), "--ranks: 0 is not between"),
        (("--ranks", "eight"), "no whole number"),
        (("--engine", "tgi"), "known are sglang, vllm"),
        (("--engine", "sglang==new"), "is no version"),
        (("--hicache-size", "300GB"), "no whole number"),
        (("--hicache-size", "0"), "--hicache-size: 0"),
        (("--model-config", "/nonexistent/config.json"), "No such file"),
        (("--hicahe-size", "3"), "No such option"),
    ],
)
def test_bad_figures(words: tuple[str, str], problem: str) -> None:
    given = [*FIGURES, "--engine", "sglang==0.5.9", *words]
    code, result = run(*given)
    assert code == 2
    assert problem in said(result)


@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"num_hidden_layers": 61', "line 1, column 25: not JSON"), ("[]", "holds no object"), ("", "is it cut off?")],
)
def test_a_broken_config(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    code, result = run(*FIGURES, "--engine", "sglang==0.5.9", "--model-config", str(path))
    assert code == 2
    assert problem in said(result)
