"""From a name to a folder: local folders first, the cache without a socket, and errors that say what to do."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from modelzoo.errors import CheckpointError
from modelzoo.hub import resolve


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Fail on every socket and every name lookup; the list holds what was tried."""
    tried: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        tried.append(arguments)
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    yield tried
    assert tried == []


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that holds org/name at a commit, with `main` pointing to it."""
    repository = tmp_path / "cache" / "models--org--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    for name in ("config.json", "model.safetensors"):
        (repository / "blobs" / name[:3]).write_text("{}")
        (snapshot / name).symlink_to(os.path.relpath(repository / "blobs" / name[:3], snapshot))
    return tmp_path / "cache"


def test_a_local_folder_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_sockets: list[object]) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == Path("org/name")
    assert resolve(tmp_path / "org") == tmp_path / "org"


def test_the_home_folder_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_sockets: list[object]) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve("~/model") == tmp_path / "model"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c", "nowhere/", "", "  ", "..\\model"])
def test_a_path_that_is_not_there_says_so(name: str, no_sockets: list[object]) -> None:
    with pytest.raises(CheckpointError) as error:
        resolve(name)
    assert repr(name) in str(error.value)
    assert "expected a model folder, found nothing there" in str(error.value)


def test_a_name_below_a_folder_that_is_here_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_sockets: list[object]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo-001").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="'runs/demo-002': expected a model folder, found nothing there"):
        resolve("runs/demo-002")


def test_a_file_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(CheckpointError, match=f"expected a model folder, found a file. Give its folder, {tmp_path}"):
        resolve(tmp_path / "model.safetensors")


@pytest.mark.parametrize("how", ["argument", "environment"])
@pytest.mark.parametrize("revision", [None, "main", "a" * 40])
def test_offline_uses_the_cache_and_no_socket(
    cache: Path, how: str, revision: str | None, no_sockets: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for allow_pickle in (False, True):
        folder = resolve(
            "org/name", revision=revision, cache_dir=cache, local_files_only=how == "argument", allow_pickle=allow_pickle
        )
        assert folder == cache / "models--org--name" / "snapshots" / ("a" * 40)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_offline_and_not_in_the_cache_says_how_to_fetch(
    cache: Path, how: str, no_sockets: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError) as error:
        resolve("org/other", cache_dir=cache, local_files_only=how == "argument")
    for word in ("'org/other'", "not in the Hugging Face cache", "hf download org/other", "HF_HUB_OFFLINE"):
        assert word in str(error.value)


@pytest.mark.parametrize("name", ["bert base", "a--b..c", "bert/", "x" * 200])
def test_a_name_that_is_no_hub_id_says_so(name: str, no_sockets: list[object]) -> None:
    with pytest.raises(CheckpointError, match="expected a model folder"):
        resolve(name, local_files_only=True)


def hub_error(kind: str) -> Exception:
    from huggingface_hub import errors

    response = SimpleNamespace(request=None, headers={}, status_code=404)
    return {
        "gated": lambda: errors.GatedRepoError("403 Client Error", response=response),
        "absent": lambda: errors.RepositoryNotFoundError("404 Client Error", response=response),
        "revision": lambda: errors.RevisionNotFoundError("404 Client Error", response=response),
        "network": lambda: errors.HTTPError("Name or service not known"),
        "not cached": lambda: errors.LocalEntryNotFoundError("cannot find the requested files"),
        "disk": lambda: OSError(28, "No space left on device"),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gated", ["https://huggingface.co/org/name", "hf auth login", "token="]),
        ("absent", ["no such local folder", "no such repository", "spelling", "hf auth login"]),
        ("revision", ["branch, tag or commit", "revision='v9'"]),
        ("network", ["hub cannot be reached", "Name or service not known", "Check the connection"]),
        ("not cached", ["hub cannot be reached", "cannot find the requested files"]),
        ("disk", ["No space left on device"]),
    ],
)
def test_errors_of_the_hub_say_what_to_do(kind: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> None:
        raise hub_error(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError) as error:
        resolve("org/name", revision="v9")
    assert all(word in str(error.value) for word in ("'org/name'", *words)), str(error.value)


def test_a_hub_that_does_not_answer_is_named(tmp_path: Path) -> None:
    code = (
        "from modelzoo.hub import resolve\n"
        "from modelzoo.errors import CheckpointError\n"
        "try:\n"
        "    resolve('org/name', cache_dir='cache')\n"
        "except CheckpointError as error:\n"
        "    assert 'cannot be reached' in str(error), error\n"
        "    assert len(str(error).splitlines()) == 1\n"
        "else:\n"
        "    raise SystemExit('no error')"
    )
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=tmp_path, env=environment)


def test_pickles_are_fetched_only_when_asked_for_and_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[dict[str, object]] = []

    def record(name: str, **options: object) -> str:
        asked.append({"name": name, **options})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", record)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    resolve("org/name", revision="v1", token="t", cache_dir=tmp_path)
    resolve("org/name", allow_pickle=True)
    assert [any("bin" in pattern for pattern in call["allow_patterns"]) for call in asked] == [False, False, True]
    assert asked[0]["revision"] == "v1"
    assert asked[0]["token"] == "t"
    assert asked[0]["cache_dir"] == str(tmp_path)
    assert asked[0]["local_files_only"] is False
    (tmp_path / "model.safetensors").write_text("")
    resolve("org/name", allow_pickle=True)
    assert len(asked) == 4


def test_importing_the_hub_loads_no_client_and_no_transformers() -> None:
    code = (
        "import sys, modelzoo.hub, modelzoo.converters\n"
        "assert not {'transformers', 'huggingface_hub', 'torch.distributed.tensor', 'datasets'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
