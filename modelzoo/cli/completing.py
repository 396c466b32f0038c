"""What a shell completes beside commands and options: names of recipes, and keys of settings. Nothing heavy is imported for it."""

from typing import Any

from typer.core import CompletionItem, TyperCommand  # type: ignore[attr-defined]  # the class that typer itself takes

__all__ = ["SettingsCommand", "keys", "recipes"]


def recipes(incomplete: str) -> list[str]:
    """Return the recipes that ship with the project and begin as a word does.

    Args:
        incomplete: What was typed of it.
    """
    from modelzoo.config.recipes import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def keys(incomplete: str) -> list[str]:
    """Return the keys of settings that begin as a word does.

    Args:
        incomplete: What was typed of it.
    """
    return [path for path, _ in _known(incomplete)]


def _known(incomplete: str) -> list[tuple[str, object]]:
    from modelzoo.config.keys import list_keys
    from modelzoo.config.schema import RunSettings

    return [(key.path, key.default) for key in list_keys(RunSettings) if key.path.startswith(incomplete)]


class SettingsCommand(TyperCommand):
    """A command that takes settings after its arguments: their keys are completed too."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Return options, or keys of settings; of one key alone also its default, so that the shell puts no space behind it."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from modelzoo.config.problems import show_value

        found = _known(incomplete)
        items = [f"{path}=" for path, _ in found]
        if len(found) == 1:
            items += [f"{path}={default if isinstance(default, str) else show_value(default)}" for path, default in found]
        return [CompletionItem(item) for item in items]
