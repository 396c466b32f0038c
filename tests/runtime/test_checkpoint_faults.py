"""Whatever fails while a checkpoint is published, what is found afterwards is the old one or the new one, whole."""

import errno
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from distributed import run_distributed
from saved_models import assert_newest_is, save, trained

from modelzoo.errors import SaveError
from modelzoo.runtime import connect, find_latest, prepare, retain, sweep
from modelzoo.runtime.checkpoints import durable, saving

STEPS_OF_PUBLISHING = [
    (os, "fsync"),
    (os, "rename"),
    (os, "open"),
    (os, "close"),
    (os, "write"),
    (os, "mkdir"),
    (shutil, "rmtree"),
    (shutil, "disk_usage"),
]


@pytest.fixture
def world():
    with connect(device="cpu") as one:
        yield one


class Killed(BaseException):
    """Stands for kill -9: nothing catches it, so nothing is tidied up."""


def fail_at(patch, number, error):
    """Raise at the `number`-th of all calls that publishing makes to the system; return the count so far."""
    calls = {"count": 0}

    def wrap(function):
        def counted(*args, **kwargs):
            calls["count"] += 1
            if calls["count"] == number:
                raise error
            return function(*args, **kwargs)

        return counted

    for module, name in STEPS_OF_PUBLISHING:
        patch(module, name, wrap(getattr(module, name)))
    return calls


def temporaries(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".tmp-")]


def test_kill_at_every_point_of_publishing_leaves_old_or_new(tmp_path, world, monkeypatch, record_property):
    models = {number: trained(number) for number in (0, 1, 2)}
    seen = set()
    for number in range(1, 200):
        folder = tmp_path / str(number)
        for first in (0, 1):
            save(folder, first, world, *models[first])
        with monkeypatch.context() as patched:
            calls = fail_at(patched.setattr, number, Killed())
            try:
                save(folder, 2, world, *models[2])
                retain(folder, 1)
            except Killed:
                pass
        seen.add(assert_newest_is(folder, world, models))
        sweep(folder)
        assert not temporaries(folder)
        if calls["count"] < number:
            break
    assert number > 25
    assert seen == {1, 2}
    record_property("publish kills", number - 1)


def test_error_at_every_point_of_publishing_is_told_and_leaves_old_or_new(tmp_path, world, monkeypatch, record_property):
    models = {number: trained(number) for number in (0, 1, 2)}
    told = 0
    for number in range(1, 200):
        folder = tmp_path / str(number)
        for first in (0, 1):
            save(folder, first, world, *models[first])
        with monkeypatch.context() as patched:
            calls = fail_at(patched.setattr, number, OSError(errno.EIO, "Input/output error"))
            message = ""
            try:
                save(folder, 2, world, *models[2])
                retain(folder, 1)
            except SaveError as error:
                message = str(error)
                told += 1
        assert message == "" or ("save of step 2 at" in message and "Input/output error" in message)
        newest = assert_newest_is(folder, world, models)
        assert newest in (1, 2)
        assert not temporaries(folder) or newest == 2
        if calls["count"] < number:
            break
    assert told > 20
    record_property("publish errors", number - 1)


def fail_on_ranks(folder: str, report: str) -> None:
    """Let each call of each of two ranks fail in turn; all ranks must hear of it, with the rank."""
    from tiny_model import adamw, build, step

    with connect(device="cpu") as world:
        model = prepare(build(), world)
        optimizer = adamw(model)
        step(model, optimizer, world.rank, world.world_size)
        points = 0
        for victim in (0, 1):
            for number in range(1, 100):
                place = Path(folder) / f"{victim}-{number}"
                save(place, 1, world, model, optimizer)
                originals = {(module, name): getattr(module, name) for module, name in STEPS_OF_PUBLISHING}
                calls = {"count": 0}
                if world.rank == victim:
                    calls = fail_at(setattr, number, OSError(errno.ENOSPC, "No space left on device"))
                heard = None
                try:
                    save(place, 2, world, model, optimizer)
                except SaveError as error:
                    heard = str(error)
                for (module, name), function in originals.items():
                    setattr(module, name, function)
                if world.sum([calls["count"] >= number])[0] == 0:
                    assert heard is None
                    break
                newest = find_latest(place, world)
                assert newest is not None
                if heard is None:  # the folder is there already, so nobody needs to know that it cannot be made
                    assert newest.manifest.step == 2
                else:
                    assert heard.startswith(f"rank {victim}: save of step 2 at ")
                    assert newest.manifest.step == 1 or victim == 0
                    assert world.rank or newest.manifest.step == 2 or not temporaries(place)
                points += 1
        if world.is_main:
            Path(report).write_text(str(points))


def test_error_on_either_of_two_ranks_is_told_to_both_with_the_rank(tmp_path, record_property):
    run_distributed(fail_on_ranks, 2, str(tmp_path / "checkpoints"), str(tmp_path / "points"))
    points = int((tmp_path / "points").read_text())
    assert points > 25
    record_property("publish errors of two ranks", points)


def sizes_of(folder):
    return [path.stat().st_size for path in folder.iterdir()]


@pytest.mark.parametrize("tenth", range(10))
def test_file_size_limit_leaves_the_old_checkpoint(tmp_path, world, tenth):
    save(tmp_path, 1, world, *trained(1))
    models = {1: trained(1), 2: trained(2)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes_of(tmp_path / "step-1")) * tenth // 10, before[1]))
        with pytest.raises(SaveError, match=r"save of step 2 at .*step-2: File too large; it needs .*intact"):
            save(tmp_path, 2, world, *models[2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert assert_newest_is(tmp_path, world, models) == 1
    save(tmp_path, 2, world, *models[2])


@pytest.mark.parametrize("tenth", range(10))
def test_disk_full_after_some_bytes_leaves_the_old_checkpoint(tmp_path, world, monkeypatch, tenth):
    models = {1: trained(1), 2: trained(2)}
    save(tmp_path, 1, world, *models[1])
    left = {"bytes": sum(sizes_of(tmp_path / "step-1")) * tenth // 10}
    write = os.write

    def limited(handle, piece):
        fits = min(len(piece), left["bytes"])
        if not fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left["bytes"] -= fits
        return write(handle, piece[:fits])

    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "write", limited)
        with pytest.raises(SaveError, match=r"save of step 2 at .*step-2: No space left on device; it needs .*intact"):
            save(tmp_path, 2, world, *models[2])
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert assert_newest_is(tmp_path, world, models) == 1
    save(tmp_path, 2, world, *models[2])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("tenth", range(10))
def test_real_full_disk_leaves_the_old_checkpoint(small_disk, world, monkeypatch, tenth):
    models = {1: trained(1), 2: trained(2)}
    save_anyway(monkeypatch)
    save(small_disk, 1, world, *models[1])
    needed = sum(-(-size // 4096) * 4096 for size in sizes_of(small_disk / "step-1"))
    filler = shutil.disk_usage(small_disk).free - needed * tenth // 10
    (small_disk / "filler").write_bytes(bytes(filler // 4096 * 4096))
    with pytest.raises(SaveError, match=r"save of step 2 at .*step-2: No space left on device; it needs "):
        save(small_disk, 2, world, *models[2])
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "step-1"]
    assert assert_newest_is(small_disk, world, models) == 1
    (small_disk / "filler").unlink()
    save(small_disk, 2, world, *models[2])


def save_anyway(monkeypatch):
    monkeypatch.setattr(saving, "check_space", lambda folder, needed, doing: None)


def test_full_disk_is_refused_before_anything_is_written(small_disk, world):
    with pytest.raises(SaveError, match=r"save of step 2 needs 1\.0 MiB, 256\.0 KiB free at .*; free some space and resume"):
        save(small_disk, 2, world, *trained())
    assert list(small_disk.iterdir()) == []


def test_folder_without_the_right_to_write_is_an_error_and_stays_as_it_is(tmp_path, world):
    if os.geteuid():
        pytest.skip("needs to become another user")
    save(tmp_path, 1, world, *trained(1))
    for place in (tmp_path, *tmp_path.parents[:-2]):
        place.chmod(0o755)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.seteuid(65534)
            save(tmp_path, 2, world, *trained(2))
        except SaveError as error:
            status = 0 if f"save of step 2 at {tmp_path / 'step-2'}: Permission denied; it needs " in str(error) else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert find_latest(tmp_path).manifest.step == 1
