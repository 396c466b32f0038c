"""The front door: help and the first error load nothing heavy, and whole commands on local folders open no connection."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "torch",
    "transformers",
    "datasets",
    "numpy",
    "pandas",
    "pyarrow",
    "tokenizers",
    "huggingface_hub",
    "safetensors",
    "jinja2",
}

WATCH = """
import json, os, socket

asked = []
connect, find = socket.socket.connect, socket.getaddrinfo

def is_local(address):
    host = address[0] if isinstance(address, tuple) else address
    return isinstance(host, (bytes, str)) and (isinstance(address, (bytes, str)) or host in ("127.0.0.1", "::1", "localhost"))

def watched_connect(self, address):
    if not is_local(address):
        asked.append(repr(address))
        raise OSError("no network in this test")
    return connect(self, address)

def watched_find(host, *words, **options):
    if host not in (None, "", "127.0.0.1", "::1", "localhost", socket.gethostname()):
        asked.append(str(host))
        raise socket.gaierror("no network in this test")
    return find(host, *words, **options)

socket.socket.connect = watched_connect
socket.socket.connect_ex = watched_connect
socket.getaddrinfo = watched_find

from modelzoo.cli import main

codes = [main(words) for words in json.loads(os.environ["COMMANDS"])]
seen = list(asked)
try:
    socket.create_connection(("192.0.2.1", 80))
except OSError:
    pass
with open(os.environ["WATCHED"], "w") as file:
    json.dump({"codes": codes, "asked": seen, "watches": len(asked) > len(seen)}, file)
"""


def modules_after(*words: str) -> tuple[int, set[str], str]:
    script = (
        "import sys; from modelzoo.cli import main\n"
        f"code = main({list(words)!r})\n"
        "print(code, *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    code, *names = done.stderr.splitlines()[-1].split()
    return int(code), set(names), done.stdout + done.stderr


@pytest.mark.parametrize("words", [["--help"], [], ["train", "--help"], ["--version"], ["explain", "optimizer.lr"], ["recipes"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code, names, _ = modules_after(*words)
    assert code == 0
    assert not HEAVY & names


@pytest.mark.parametrize(
    "words",
    [
        ["train", "demo", "lerning_rate=1"],
        ["train", "demo", "data.train=nowhere.jsonl"],
        ["check", "demo", "epoch=2"],
        ["plan", "demo", "bacth=2"],
        ["train", "no-such-recipe"],
        ["evel", "x"],
        ["eval", "x", "max_lenght=3"],
    ],
)
def test_the_first_error_loads_nothing_heavy(words: list[str]) -> None:
    code, names, text = modules_after(*words)
    assert code == 2
    assert "error: " in text
    assert not HEAVY & names


@pytest.mark.parametrize("is_offline", [True, False], ids=["HF_HUB_OFFLINE", "online"])
def test_whole_commands_on_local_folders_open_no_connection(is_offline: bool, tmp_path: Path) -> None:
    commands = [
        ["check", "demo"],
        ["plan", "demo"],
        ["train", "demo", "train.max_steps=2", "output.name=one"],
        ["eval", "runs/one-001"],
        ["predict", "runs/one-001", "--text", "was it open", "--pair", "It was."],
        ["info", "runs/one-001"],
        ["export", "runs/one-001", "mine", "--verify"],
        ["data", "show", "demo", "--rows", "1"],
    ]
    watched = tmp_path / "watched.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"COMMANDS": json.dumps(commands), "WATCHED": str(watched), "HF_HOME": str(tmp_path / "hub")}
    environment |= {"HF_HUB_OFFLINE": "1"} if is_offline else {}
    done = subprocess.run([sys.executable, "-c", WATCH], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(watched.read_text()) == {"codes": [0] * len(commands), "asked": [], "watches": True}, (
        done.stdout + done.stderr
    )
