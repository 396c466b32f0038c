import json
import multiprocessing
import os
from pathlib import Path

import pytest

from modelzoo.errors import CheckpointError, InputError, SaveError
from modelzoo.report import read_records
from modelzoo.runtime import connect
from modelzoo.training.loop_state import LoopState
from modelzoo.training.records import Records
from modelzoo.training.run_directory import RunDirectory, environment


def test_folders_are_numbered_and_never_taken_twice(tmp_path):
    (tmp_path / "tiny-002").mkdir()
    assert [RunDirectory.create(tmp_path, "tiny").path.name for _ in range(3)] == ["tiny-001", "tiny-003", "tiny-004"]


def claim(folder: str) -> str:
    return RunDirectory.create(Path(folder), "tiny").path.name


def test_processes_that_start_together_get_folders_of_their_own(tmp_path):
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        names = pool.map(claim, [str(tmp_path)] * 12)
    assert sorted(names) == [f"tiny-{number:03}" for number in range(1, 13)]


def test_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(SaveError, match=r"output.folder=.*/runs: expected a folder, found a file; set output.folder to another"):
        RunDirectory.create(tmp_path / "runs", "tiny")
    with pytest.raises(SaveError, match=r"output.folder=.*/runs/below: expected a folder, found a file"):
        RunDirectory.create(tmp_path / "runs" / "below", "tiny")


def test_lock_names_its_holder_and_ends_with_it(tmp_path):
    directory = RunDirectory.create(tmp_path, "tiny")
    with directory.locked(), pytest.raises(InputError, match=f"process {os.getpid()} works on this run"), directory.locked():
        pass
    with directory.locked():
        pass


def test_environment_has_versions_and_no_paths():
    with connect(device="cpu") as world:
        facts = environment(world)
    assert set(facts["packages"]) >= {"torch", "transformers", "safetensors"}
    assert "/" not in json.dumps(facts)


def test_records_are_cut_back_to_the_resumed_step_and_a_torn_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records = Records(path)
    for step in range(1, 6):
        records.add({"step": step, "loss": 1 / step})
    records.add({"step": 5, "evaluation": {"accuracy": 0.5}})
    records.close()
    whole = path.read_text()
    path.write_text(whole + '{"step": 6, "lo')
    again = Records(path, step=3)
    for step in range(4, 6):
        again.add({"step": step, "loss": 1 / step})
    again.add({"step": 5, "evaluation": {"accuracy": 0.5}})
    again.close()
    assert path.read_text() == whole
    assert list(read_records(path))[2] == {"step": 3, "loss": 1 / 3}


def test_other_ranks_record_nothing(tmp_path):
    records = Records(None, 3)
    records.add({"step": 4})
    records.sync()
    records.close()
    assert list(tmp_path.iterdir()) == []


def test_state_of_another_version_is_refused_by_field():
    assert LoopState.from_json(LoopState(step=3, best_value=0.1).to_json()) == LoopState(step=3, best_value=0.1)
    with pytest.raises(CheckpointError, match="unexpected keyword argument 'scale'"):
        LoopState.from_json({"scale": 1.0})
