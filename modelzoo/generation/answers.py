"""`answer`: every answer of CPM-Bee's trees, one after the other, each read by those behind it."""

from collections.abc import Mapping, Sequence
from typing import Any

from modelzoo.data import Tokenizer, load_tokenizer
from modelzoo.data.cpm_bee_trees import Tree, read_trees
from modelzoo.errors import ConfigError
from modelzoo.generation.built_prompts import tree_prompts
from modelzoo.generation.generate_text import generate
from modelzoo.generation.settings import GenerationSettings, settings_from
from modelzoo.models.model import Model

__all__ = ["answer"]


def answer(
    model: Model,
    trees: Sequence[Tree],
    *,
    examples: Sequence[Tree] = (),
    tokenizer: Tokenizer | None = None,
    settings: GenerationSettings | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Let a CPM-Bee write the texts below "<ans>".

    Where a tree has several answers, each is written with those before it in view, by a call of its own. OpenBMB's code writes them
    with one set of beams, which for greedy decoding is the same.

    Args:
        model: A CPM-Bee for "causal_lm".
        trees: As {"input": "...", "<ans>": {"question": "", ...}}; they are left as they are.
        examples: Trees with their answers, which each tree sees and which do not see each other; none for no examples.
        tokenizer: Of the model; None for that of its folder.
        settings: As in `generate`; `max_new_tokens` is for each answer.
        **options: As in `generate`.

    Returns:
        Copies of the trees with their answers.

    Raises:
        ConfigError: The model is no CPM-Bee, or an option is not known or has no place here.
        DataError: A tree has no answer, or something else than texts.
    """
    if model.family != "cpmbee":
        raise ConfigError(f"trees of texts are answered by CPM-Bee, found a {type(model).__name__}; use generate")
    given = settings_from(settings, options)
    if given.num_return_sequences != 1:
        raise ConfigError(
            f"num_return_sequences={given.num_return_sequences}: a tree has room for one text an answer; leave it out"
        )
    if tokenizer is None:
        if model.source_folder is None:
            raise ConfigError(
                "this model came from no folder, so its tokenizer is not known; give tokenizer=load_tokenizer(FOLDER)"
            )
        tokenizer = load_tokenizer(model.source_folder)
    read = read_trees(tokenizer, trees)
    ids: list[list[list[int]]] = [[] for _ in trees]
    texts: list[dict[tuple[str, ...], str]] = [{} for _ in trees]
    for number in range(max((len(each.answers) for each in read), default=0)):
        rows = [row for row, each in enumerate(read) if len(each.answers) > number]
        # An extension of the vocabulary belongs to a batch, so the rows of a batch stay the same until the last answer is written.
        prompts = tree_prompts(model, trees, tokenizer, ids, examples)
        found = generate(model, prompts, tokenizer=tokenizer, settings=given)
        assert found.texts is not None
        for row in rows:
            ids[row].append([each for each in found.new_ids[row] if each != tokenizer.eos_id])
            texts[row][read[row].answers[number].path] = found.texts[row]
    return [_filled(tree, (), found) for tree, found in zip(trees, texts, strict=True)]


def _filled(tree: Tree, path: tuple[str, ...], texts: Mapping[tuple[str, ...], str]) -> dict[str, Any]:
    """Copy a tree, and put the texts where they belong."""
    return {
        key: _filled(value, (*path, key), texts) if isinstance(value, Mapping) else texts.get((*path, key), value)
        for key, value in tree.items()
    }
