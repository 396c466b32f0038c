"""Finding recipes: the ones that ship with the project, by name, and a user's own, by path."""

import importlib.util
from pathlib import Path

from modelzoo.errors import ConfigError, closest

__all__ = ["find_recipe", "recipe_names", "recipe_path", "recipes_folder"]

_FILE = "recipe.yaml"
_DECIDED = "resolved.yaml"
"""A run's settings as they were decided; its recipe.yaml is the recipe as it was written, which command-line words changed."""
_YAML = (".yaml", ".yml")


def recipes_folder() -> Path:
    """Return the folder of the recipes that ship with the project."""
    spec = importlib.util.find_spec("modelzoo.recipes")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the recipes are not installed beside modelzoo; install it again: pip install --force-reinstall modelzoo-hub"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def recipe_names() -> list[str]:
    """Return the names of the recipes that ship with the project, sorted."""
    return sorted(_files())


def _files() -> dict[str, Path]:
    """Return the file of each recipe: a folder's recipe.yaml goes by the folder's name, others beside it by their own."""
    found = recipes_folder().glob("*/*.yaml")
    return {file.parent.name if file.name == _FILE else file.stem: file for file in found}


def recipe_path(name: str) -> Path:
    """Return the YAML file of a recipe that ships with the project.

    Raises:
        ConfigError: There is no such recipe.
    """
    names = recipe_names()
    if name not in names:
        near = closest(name, names)
        own = _files_like(f"{name}.yaml", Path())
        known = f"there are {', '.join(names)}. A recipe of your own is given by its path: ./{name}.yaml"
        meant = " or ".join([*(f"./{file}" for file in own), *near[:1]])
        raise ConfigError(f"recipe {name!r} is not known; {f'did you mean {meant}?' if meant else known}")
    return _files()[name]


def _files_like(name: str, folder: Path) -> list[str]:
    """Return the YAML file of a folder whose name is nearest, if one is near."""
    found = {file.stem: file.name for file in folder.iterdir() if file.suffix in _YAML} if folder.is_dir() else {}
    return [found[stem] for stem in closest(Path(name).stem, found)]


def find_recipe(name_or_path: str) -> Path:
    """Return the YAML file that a recipe's name, a file, a folder with a recipe.yaml or the folder of a run stands for.

    Raises:
        ConfigError: There is neither such a file nor such a recipe.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix in _YAML:
        if not path.is_file():
            near = _files_like(path.name, path.parent)
            hint = f"; did you mean {path.parent / near[0]}?" if near else f" (looked in {path.resolve().parent})"
            raise ConfigError(f"recipe file {name_or_path} does not exist{hint}")
        return path.resolve()
    if len(path.parts) == 1 and name_or_path in recipe_names():
        return recipe_path(name_or_path)
    for file in (path / _DECIDED, path / _FILE):
        if file.is_file():
            return file.resolve()
    if len(path.parts) > 1:
        raise ConfigError(f"recipe {name_or_path}: expected a .yaml file, a folder that holds {_FILE}, or a run; found none")
    return recipe_path(name_or_path)
