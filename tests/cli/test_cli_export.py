"""export, push and info: a result as a folder for others, with proof and card; the hub is a stand-in here."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelzoo.cli import main
from modelzoo.errors import CheckpointError, ConfigError, SaveError
from modelzoo.hub.push import push_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps."""
    runs = tmp_path_factory.mktemp("runs")
    assert main(["demo", f"output.folder={runs}", "train.max_steps=2", "data.max_rows=32"]) == 0
    return runs / "demo-001"


def test_export_copies_the_result_and_writes_the_proof_into_its_card(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["export", str(run), str(tmp_path / "out"), "--verify"]) == 0
    out = capsys.readouterr().out
    assert "llama.cpp: reranking" in out
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (run / "final" / name).read_bytes()
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith((run / "final" / "README.md").read_text().rstrip())
    assert "## Verified" in card
    assert "the largest logit is the same one at 100.00% of the places" in card
    assert "## Verified" not in (run / "final" / "README.md").read_text()


def test_export_overwrites_nothing(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert main(["export", str(run), str(tmp_path / "out")]) == 3
    assert "exists already and is left as it is" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "merged"], "is a plain model; use --to hf"),
        (["--to", "peft"], "is a plain model; use --to hf"),
        (["--to", "gguf"], "gguf"),
    ],
)
def test_export_refuses_what_the_result_is_not(
    run: Path, tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), str(tmp_path / "out"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_export_of_a_run_without_a_result_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "resolved.yaml").write_text("recipe: x\n")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    assert "modelzoo resume" in capsys.readouterr().err
    assert main(["push", str(tmp_path / "run"), "me/x"]) == 2
    assert "modelzoo resume" in capsys.readouterr().err


def test_an_adapter_is_exported_as_it_is_and_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["adapter.method=lora", "adapter.train_also=[pooler]", "train.max_steps=2", "data.max_rows=32"]
    assert main(["demo", f"output.folder={tmp_path}", *words]) == 0
    assert "proof    of the adapter and its base as one model" in capsys.readouterr().out
    final = tmp_path / "demo-001" / "final"
    assert main(["export", str(tmp_path / "demo-001"), str(tmp_path / "hf")]) == 2
    assert "is an adapter; use --to peft or --to merged" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "demo-001"), str(tmp_path / "peft"), "--to", "peft"]) == 0
    for name in ("adapter_config.json", "README.md"):
        assert (tmp_path / "peft" / name).read_text() == (final / name).read_text()
    assert main(["export", str(tmp_path / "demo-001"), str(tmp_path / "merged"), "--to", "merged", "--verify"]) == 0
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "from transformers import AutoModelForSequenceClassification, AutoTokenizer" in card
    assert "peft" not in card.partition("## Training")[0]
    assert "## Verified" in card


class FakeHub:
    """Keeps what it is told; fails as often as it is asked to."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failures = failures

    def whoami(self) -> dict[str, str]:
        return {"name": "me"}

    def create_repo(self, name: str, **options: Any) -> None:
        self.calls.append(("create_repo", {"name": name, **options}))

    def upload_folder(self, **options: Any) -> None:
        self.calls.append(("upload_folder", options))
        if self.failures:
            self.failures -= 1
            raise ConnectionError("connection reset by peer")

    def repo_info(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(private=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_push_makes_a_private_repository_and_sends_the_folder(model: Path) -> None:
    hub = FakeHub()
    done = push_folder(model, "me/x", api=hub)
    assert (done.url, done.is_private) == ("https://huggingface.co/me/x", True)
    assert hub.calls[0] == ("create_repo", {"name": "me/x", "private": True, "exist_ok": True})
    assert hub.calls[1][1]["folder_path"] == model
    push_folder(model, "me/x", private=False, api=hub)
    assert hub.calls[2][1]["private"] is False


def test_push_that_fails_says_how_to_go_on_and_goes_on(model: Path) -> None:
    hub = FakeHub(failures=1)
    with pytest.raises(SaveError, match=r"push to me/x: connection reset by peer; .* push again to go on"):
        push_folder(model, "me/x", api=hub)
    assert push_folder(model, "me/x", api=hub).is_private
    with pytest.raises(SaveError, match=r"push to you/x \(logged in as me\)"):
        push_folder(model, "you/x", api=FakeHub(failures=1))


def test_large_folders_go_up_file_by_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelzoo.hub.push._LARGE_BYTES", 1)
    hub = FakeHub()
    hub.upload_large_folder = lambda **options: hub.calls.append(("upload_large_folder", options))  # type: ignore[attr-defined]
    push_folder(model, "me/x", api=hub)
    assert [name for name, _ in hub.calls] == ["create_repo", "upload_large_folder"]


def test_push_checks_login_name_and_folder_before_anything_is_sent(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.errors import LocalTokenNotFoundError

    class LoggedOut(FakeHub):
        def whoami(self) -> dict[str, str]:
            raise LocalTokenNotFoundError("no token")

    hub = LoggedOut()
    with pytest.raises(ConfigError, match=r"nobody is logged in .*hf auth login"):
        push_folder(model, "me/x", api=hub)
    for name in ("x", "me/x/y", "../x", "me/x y"):
        with pytest.raises(ConfigError, match="expected USER/NAME"):
            push_folder(model, name, api=hub)
    with pytest.raises(CheckpointError, match="expected the folder of a model"):
        push_folder(tmp_path, "me/x", api=hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        push_folder(model, "me/x", api=hub)
    assert hub.calls == []


def test_info_says_what_a_folder_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import hashlib

    from modelzoo.models.auto import from_pretrained

    capsys.readouterr()
    assert main(["info", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = from_pretrained(run / "final")
    assert found["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert (found["family"], found["class"], found["dtypes"]) == ("bert", "BertForSequenceClassification", ["float32"])
    assert (found["layers"], found["context"], found["vocabulary"], found["labels"]) == (3, 128, 900, ["false", "true"])
    assert "classification" in found["tasks"]
    weights = next(file for file in found["files"] if file["name"] == "model.safetensors")
    assert weights["sha256"] == hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()
    assert found["license"] == "not stated"
    assert main(["info", str(run)]) == 0
    assert "special tokens" in capsys.readouterr().out


def test_info_reads_the_licence_and_names_foreign_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}))
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: my-licence\n---\n")
    assert main(["info", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["license"], found["tasks"], found["parameters"]) == ("my-licence", [], None)
    assert "not one of modelzoo's families" in found["family"]
    assert main(["info", str(tmp_path / "none")]) == 2
