"""What is installed: the wheel holds the whole library under one name, with its recipes, and nothing else."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"modelzoo": "modelzoo", "layers": "modelzoo/layers", "converters": "modelzoo/converters", "recipes": "modelzoo/recipes"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without network from a copy of the sources, so that no build folder is left in the tree."""
    pytest.importorskip("setuptools")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.pyc.*"))  # being written by another process
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(out),
        ".",
    ]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_owns_one_top_level_name(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    version = PROJECT["project"]["version"]
    assert tops == {"modelzoo", f"modelzoo_hub-{version}.dist-info"}


def test_the_wheel_holds_every_source_file_and_every_recipe(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, place in FOLDERS.items():
        kept = [
            file
            for file in (ROOT / folder).rglob("*")
            if file.is_file() and (folder == "recipes" or file.suffix in {".py", ".typed"})
        ]
        for file in kept:
            if "__pycache__" not in file.parts:
                assert f"{place}/{file.relative_to(ROOT / folder)}" in names, "name its package in [tool.setuptools] packages"
    assert {"modelzoo/py.typed", "modelzoo/recipes/bert-boolq/recipe.yaml", "modelzoo/recipes/demo/recipe.yaml"} <= names


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    for name in zipfile.ZipFile(wheel).namelist():
        assert not any(part in name for part in ("__pycache__", ".pyc", "test_", "conftest", "egg-info")), name


def test_the_wheel_is_small_enough_to_carry_its_demo_model(wheel: Path) -> None:
    assert wheel.stat().st_size < 16 * 1024**2


def test_the_unpacked_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = "import modelzoo, modelzoo.layers; from modelzoo.config import recipe_names; print(modelzoo.__file__, *recipe_names())"
    environment = os.environ | {"PYTHONPATH": str(site)}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    file, *recipes = result.stdout.split()
    assert file.startswith(str(site))
    assert {"bert-boolq", "demo"} <= set(recipes)


def test_every_dependency_has_a_tested_version_inside_its_range() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    tested = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if line)}
    extras = PROJECT["project"]["optional-dependencies"].values()
    for text in [*PROJECT["project"]["dependencies"], *(text for extra in extras for text in extra)]:
        requirement = Requirement(text)
        version = tested.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} has no tested version in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} does not accept the tested {version}"


def test_the_checks_are_one_executable_file() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
