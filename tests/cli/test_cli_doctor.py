"""`modelzoo doctor`: what it finds, and that what stops a run is a problem."""

import importlib.metadata
import json
from pathlib import Path

import pytest

from modelzoo.cli import main
from modelzoo.cli.doctor import examine


def test_doctor_names_versions_machine_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["torch"]["value"] == importlib.metadata.version("torch")
    assert {"python", "transformers", "modelzoo", "cores", "memory", "disk", "processes", "hub cache"} <= set(found)
    assert main(["doctor"]) == 0
    assert "no problem found" in capsys.readouterr().out


def test_an_old_torch_is_a_problem(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.6.0" if name == "torch" else version(name))
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "torch            2.6.0" in text
    assert "expected torch<2.16,>=2.13" in text
    assert "1 problem found" in text


def test_a_missing_package_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def found(name: str) -> str:
        if name == "datasets":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", found)
    finding = next(finding for finding in examine(Path.cwd()) if finding.name == "datasets")
    assert (finding.level, finding.value) == ("problem", "not installed")


def test_unused_cores_and_offline_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = {finding.name: finding for finding in examine(tmp_path)}
    assert (found["cores"].level, found["cores"].value) == ("note", "4, OMP_NUM_THREADS=1")
    assert found["hub"].level == "note"
