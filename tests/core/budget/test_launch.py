"""Launches as people write them: what they say is read, what they leave open is named."""

from __future__ import annotations

import pytest

from recover.core.budget.launch import from_argv, parse
from recover.core.budget.model import GIB, Launch, Problem
from recover.core.budget.rewrite import command_of, with_value
from recover.core.budget.version import version

SCRIPT = r"""#!/usr/bin/env bash
set -euo pipefail
export CUDA_VISIBLE_DEVICES=0,1,2,3
export HF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaaaa
HICACHE=48
ARGS=(--tp 8
      --hicache-size "$HICACHE")
EXTRA="--mem-fraction-static 0.88 --page-size=64"
# --hicache-size 9 was too little
cat <<EOF > note.txt
python -m sglang.launch_server --hicache-size 1
EOF
nohup numactl --membind=0 /opt/venv/bin/python3 -u -m sglang.launch_server \
  --model-path '/models/Kimi K2' \
  "${ARGS[@]}" $EXTRA --host 0.0.0.0 > server.log 2>&1 &
"""
UNIT = """[Unit]
Description=SGLang
[Service]
Environment="SIZE=48" OTHER=x
MemoryMax=400G
ExecStartPre=/bin/true
ExecStart=/opt/venv/bin/python -m sglang.launch_server \\
    --tp 8 \\
    # why this size: see the wiki
    --hicache-size ${SIZE} --model-path /m
[Install]
WantedBy=multi-user.target
"""
COMPOSE = """services:
  web:
    image: nginx:1.27
  sglang:
    image: lmsysorg/sglang:v0.5.9-cu129-amd64
    shm_size: 32g
    deploy: {resources: {limits: {memory: 400g}}}
    environment:
      SGLANG_HUGEPAGE_SIZE: 2MB
      HF_TOKEN: secret
    command: >
      python3 -m sglang.launch_server --model-path m
      --tp ${TP:-8} --hicache-size ${SIZE}
"""
SHELL_SERVICE = """services:
  a:
    image: lmsysorg/sglang:v0.5.9
    mem_limit: 200g
    entrypoint: [bash, -c]
    command: ['sglang serve --tp 8']
"""


def one(text: str, **files: str) -> Launch:
    (launch,) = parse(text, files={k.replace("__", "/"): v for k, v in files.items()})
    return launch


@pytest.mark.parametrize(
    ("text", "engine", "name", "value"),
    [
        ("python -m sglang.launch_server --tp 8 --hicache-size 300", "sglang", "hicache-size", "300"),
        ("python3.11 -u -m sglang.launch_server --hicache-si=300", "sglang", "hicache-size", "300"),
        ("sglang serve --model-path m --tp 8 --hicache-size 300", "sglang", "tp-size", "8"),
        ("sudo -E /opt/x/bin/vllm serve m -tp 8 --kv_offloading_size 300", "vllm", "kv-offloading-size", "300"),
        ("vllm serve m --tensor-par 8", "vllm", "tensor-parallel-size", "8"),
        ("python -m vllm.entrypoints.openai.api_server --model m --swap 16", "vllm", "swap-space", "16"),
        ("bash -lc 'cd /x && exec vllm serve m --cpu-offload-gb 4'", "vllm", "cpu-offload-gb", "4"),
        ("docker run --rm -it vllm/vllm-openai:v0.13.0 --model m -tp 4", "vllm", "tensor-parallel-size", "4"),
        ("trtllm-serve serve m --tp_size 8", "trtllm", "tp-size", "8"),
        ("trtllm-serve m --tp-size 8", "trtllm", "tp-size", "8"),
        ("./build/bin/llama-server -m /m.gguf -cram 8192", "llama.cpp", "cache-ram", "8192"),
        ("lmcache server --l1-size-gb 60", "lmcache", "l1-size-gb", "60"),
        ('declare -r N=8; : "${S:=48}"; sglang serve --tp $N --hicache-size $S', "sglang", "hicache-size", "48"),
        ("cd /x && N=8 && sglang serve --tp 8", "sglang", "tp-size", "8"),
        ("OMP_NUM_THREADS=4 FOO=1 setsid python -m sglang.launch_server --pp-size 2", "sglang", "pp-size", "2"),
    ],
)
def test_commands(text: str, engine: str, name: str, value: str) -> None:
    launch = one(text)
    assert (launch.engine, launch.value(name)) == (engine, value)
    assert not [u for u in launch.unresolved if u.matters]


def test_a_shell_script() -> None:
    launch = one(SCRIPT)
    assert [launch.value(n) for n in ("tp-size", "hicache-size", "page-size")] == ["8", "48", "64"]
    assert launch.model == "/models/Kimi K2"
    assert launch.interpreter == "/opt/venv/bin/python3"
    assert launch.membind == "0"
    assert launch.env == (("CUDA_VISIBLE_DEVICES", "0,1,2,3"),)  # and no token
    assert launch.unresolved == ()


def test_variables_of_another_file() -> None:
    text = ". ./env.sh\npython -m sglang.launch_server --tp $TP --hicache-size ${SIZE:-9} $MORE\n"
    (launch,) = parse(
        text, files={"env.sh": "export TP=8 SIZE=48\nMORE='--pp-size 2'\nexport LMCACHE_LOCAL_CPU=False\n"}
    )
    assert [launch.value(n) for n in ("tp-size", "hicache-size", "pp-size")] == ["8", "48", "2"]
    assert launch.variable("LMCACHE_LOCAL_CPU") == "False"
    (alone,) = parse(text)
    assert {u.word for u in alone.unresolved} == {"--tp $TP", "$MORE"}
    assert alone.assumed == ("$SIZE is not set: its default '9' is taken",)


def test_a_unit() -> None:
    launch = one(UNIT)
    assert [launch.value(n) for n in ("tp-size", "hicache-size")] == ["8", "48"]
    assert launch.memory_limit == 400 * GIB
    assert launch.wrapper == "systemd"


def test_a_unit_whose_environment_file_is_missing_names_it() -> None:
    unit = UNIT.replace('Environment="SIZE=48" OTHER=x', "EnvironmentFile=/etc/sglang.env")
    launch = one(unit)
    assert "/etc/sglang.env" in launch.files
    assert any(u.matters and "--hicache-size" in u.word for u in launch.unresolved)
    given = parse(unit, files={"/etc/sglang.env": "SIZE=48\n"})[0]
    assert given.value("hicache-size") == "48"


def test_a_compose_service() -> None:
    launch = one(COMPOSE)
    assert launch.version == version("0.5.9")
    assert launch.value("tp-size") == "8"
    assert "TP" in launch.assumed[0]
    assert (launch.shm_size, launch.memory_limit) == (32 * GIB, 400 * GIB)
    assert launch.env == (("SGLANG_HUGEPAGE_SIZE", "2MB"),)
    (left,) = [u for u in launch.unresolved if u.matters]
    assert left.word.startswith("--hicache-size")
    assert "SIZE is not set" in left.why


def test_docker_run() -> None:
    launch = one(
        "docker run -d --gpus all --shm-size=16g -m 200g -e LMCACHE_MAX_LOCAL_CPU_SIZE=20 -v /a:/b --ipc=host "
        "lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --tp 8"
    )
    assert (launch.shm_size, launch.memory_limit) == (16 * GIB, 200 * GIB)
    assert (str(launch.version), launch.image) == ("0.5.9", "lmsysorg/sglang:v0.5.9")
    assert launch.variable("LMCACHE_MAX_LOCAL_CPU_SIZE") == "20"


def test_a_config_file_is_read_and_the_command_line_wins() -> None:
    (launch,) = parse(
        "python -m sglang.launch_server --config c.yaml --tp 4",
        files={"c.yaml": "tp-size: 8\nhicache-size: 48\nenable-hierarchical-cache: true\ntrust-remote-code: false\n"},
    )
    assert [launch.value(n) for n in ("tp-size", "hicache-size")] == ["4", "48"]
    assert launch.has("enable-hierarchical-cache")
    assert not launch.has("trust-remote-code")


def test_keys_of_a_config_file_are_spelled_as_the_engine_spells_them() -> None:
    (launch,) = parse("sglang serve --config c.yaml", files={"c.yaml": "hicache_size: 48\n"})
    assert [u.word for u in launch.unresolved if u.matters] == ["--hicache_size"]
    (other,) = parse("vllm serve m --config c.yaml", files={"c.yaml": "swap_space: 4\n"})
    assert other.value("swap-space") == "4"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("python -m sglang.launch_server --config c.yaml", "c.yaml"),
        ("python -m sglang.launch_server --hicache 300", "--hicache"),
        ("python -m sglang.launch_server --tp $TP", "--tp $TP"),
        ("python -m sglang.launch_server --tp $(nproc)", "--tp $(nproc)"),
        ('python -m sglang.launch_server "$@"', '"$@"'),
        ("if [ -n 1 ]; then N=8; fi; python -m sglang.launch_server --tp $N", "--tp $N"),
        ("python -m sglang.launch_server --hicache-size", "--hicache-size"),
        ("trtllm-serve m --extra_llm_api_options x.yml", "x.yml"),
        ("N=4\n[ -n 1 ] && N=8\nsglang serve --tp $N", "--tp $N"),
        ("export N=4\nexport N=$(nproc)\nsglang serve --tp $N", "--tp $N"),
        ("N=4\nread N\nsglang serve --tp $N", "--tp $N"),
        ("for N in 4 8; do sglang serve --tp $N; done", "--tp $N"),
        ("f() { N=4; }\nsglang serve --tp $N", "--tp $N"),
    ],
)
def test_what_matters_and_cant_be_resolved_is_named(text: str, word: str) -> None:
    assert word in [u.word for u in one(text).unresolved if u.matters]


def test_a_model_from_a_variable_changes_no_size() -> None:
    for text in ('vllm serve "$MODEL" -tp 8', "sglang serve --model-path $MODEL --tp 8", 'trtllm-serve "$1"'):
        launch = one(text)
        assert launch.unresolved
        assert not [u for u in launch.unresolved if u.matters]
    assert [u for u in one("vllm serve $MODEL_AND_MORE").unresolved if u.matters]
    assert [u for u in one("vllm serve m --served-model-name a $MORE").unresolved if u.matters]


def test_an_option_of_another_release_is_named() -> None:
    (launch,) = parse("sglang serve --hicache-host-memory-fraction 0.5 --nonsense 3", version=version("0.5.9"))
    assert [u.word for u in launch.unresolved] == ["--hicache-host-memory-fraction", "--nonsense"]
    assert [u.matters for u in launch.unresolved] == [True, False]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("python -m sglang.launch_server --model-path 'x", "line 1, column 45"),
        ('A=1\nvllm serve "m', "line 2, column 12"),
        ("[Service]\nExecStart=vllm serve 'm\n", "line 2, column 22"),
        ("services:\n  a: [\n", "line 3, column 1"),
        ("echo hello", "no command here"),
        ("", "no command here"),
    ],
)
def test_broken_text_has_its_place(text: str, place: str) -> None:
    with pytest.raises(Problem, match=place):
        parse(text)


@pytest.mark.parametrize("text", ["pkill -f llama-server", "grep -r 'vllm serve' .", "systemctl stop vllm serve"])
def test_to_look_for_a_server_starts_none(text: str) -> None:
    assert from_argv(text.split()) is None


def test_a_changed_size_leaves_the_rest_of_the_text_alone() -> None:
    text = "ulimit -l unlimited\nsglang serve --tp 8 \\\n  --hicache-size 300 \\\n  --port 30000  # prod\n"
    assert command_of(with_value(one(text), "hicache-size", "51")) == text.replace("300 ", "51 ")
    joined = one("sglang serve --hicache-size=300 --tp 8")
    assert command_of(with_value(joined, "hicache-size", "51")) == "sglang serve --hicache-size=51 --tp 8"


def test_a_size_from_a_variable_is_changed_in_the_words() -> None:
    changed = command_of(with_value(one(SCRIPT), "hicache-size", "47"))
    assert "--hicache-size 47" in changed
    assert changed.startswith("/opt/venv/bin/python3 -m sglang.launch_server --model-path '/models/Kimi K2'")


@pytest.mark.parametrize(
    "text",
    [
        "docker run -m 200g lmsysorg/sglang:v0.5.9 bash -c 'pip list && python3 -m sglang.launch_server --tp 8'",
        "docker run --entrypoint bash --memory=200g lmsysorg/sglang:v0.5.9 -lc 'sglang serve --tp 8'",
        SHELL_SERVICE,
    ],
)
def test_a_shell_in_a_container(text: str) -> None:
    launch = one(text)
    assert (launch.value("tp-size"), str(launch.version), launch.memory_limit) == ("8", "0.5.9", 200 * GIB)


@pytest.mark.parametrize(
    "text",
    [
        "tmux new-session -d -s x 'sglang serve --tp 8'",
        'ssh gpu1 "cd /x; vllm serve m -tp 8"',
        "su a -c 'vllm serve m -tp 8'",
    ],
)
def test_a_command_in_one_word(text: str) -> None:
    launch = one(text)
    assert "8" in (launch.value("tp-size"), launch.value("tensor-parallel-size"))


def test_two_values_are_changed_in_the_same_text() -> None:
    launch = one("sglang serve --hicache-size 300 --cpu-offload-gb 1000 # 300")
    changed = with_value(with_value(launch, "hicache-size", "5"), "cpu-offload-gb", "20")
    assert command_of(changed) == "sglang serve --hicache-size 5 --cpu-offload-gb 20 # 300"
