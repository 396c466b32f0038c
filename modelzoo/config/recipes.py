"""Finding recipes: the ones that ship with the project, by name, and a user's own, by path."""

import importlib.util
from pathlib import Path

from modelzoo.errors import ConfigError, closest

__all__ = ["find_recipe", "recipe_names", "recipe_path", "recipes_folder"]

_FILE = "recipe.yaml"


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
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}."
        raise ConfigError(f"recipe {name!r} is not known; {hint} A recipe of your own is given by its path: ./{name}.yaml")
    return _files()[name]


def find_recipe(name_or_path: str) -> Path:
    """Return the YAML file that a recipe's name, a file or a folder with a recipe.yaml stands for.

    Raises:
        ConfigError: There is neither such a file nor such a recipe.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise ConfigError(f"recipe file {name_or_path} does not exist (looked in {path.resolve().parent})")
        return path.resolve()
    if len(path.parts) == 1 and name_or_path in recipe_names():
        return recipe_path(name_or_path)
    if path.is_dir() and (path / _FILE).is_file():
        return (path / _FILE).resolve()
    if len(path.parts) > 1:
        raise ConfigError(f"recipe {name_or_path}: expected a .yaml file or a folder that holds {_FILE}; found neither")
    return recipe_path(name_or_path)
