"""How GLM's Chinese models cut a text: commands such as [gMASK], and a sentencepiece model's pieces between them.

The commands stand after the model's pieces. Where a folder has an added_tokens.json, it says their ids. Without one they are as
THUDM's code made them for glm-10b-chinese, ModelCenter's glm-10b-zh: <|endofpiece|> and [gMASK] have one id there, which its
authors set right for later models only.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from modelzoo.data.cpm_pieces import SentencePieceModel
from modelzoo.data.piece_backend import Piece
from modelzoo.data.special_tokens import read_json_object
from modelzoo.errors import DataError

__all__ = ["GLM_MASKS", "GLM_ROLES", "GlmPieces", "glm_commands", "glm_model_file"]

GLM_MASKS = ("[MASK]", "[sMASK]", "[gMASK]")
"""Tokens that stand for a blank: a word or a few, a sentence, a long text."""

GLM_ROLES = {
    "unk_token": "<unk>", "pad_token": "<|endoftext|>", "eos_token": "<|endofpiece|>", "bos_token": "<|startofpiece|>",
    "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip
"""Tokens with a role; the one that ends what is written is the end of a blank."""

_COMMANDS = {
    "<|endoftext|>": 0, "[SEP]": 1, "[CLS]": 2, "[MASK]": 3, "[UNK]": 4, "<|startofpiece|>": 6, "<|endofpiece|>": 7, "[gMASK]": 7,
    "[sMASK]": 8,
}  # fmt: skip


def glm_model_file(folder: Path) -> Path:
    """Return a folder's sentencepiece model.

    Raises:
        DataError: There is none, or more than one.
    """
    files = sorted(folder.glob("*.model"))
    if len(files) != 1:
        found = ", ".join(each.name for each in files) or "none"
        raise DataError(f"{folder}: expected one sentencepiece model, as cog-pretrain.model, found {found}")
    return files[0]


def glm_commands(folder: Path, num_pieces: int) -> dict[str, int]:
    """Return the ids of the commands.

    Args:
        folder: Of the tokenizer.
        num_pieces: Of the sentencepiece model.

    Raises:
        DataError: added_tokens.json lacks a command, or has it among the pieces.
    """
    file = folder / "added_tokens.json"
    stated = read_json_object(file)
    if not stated:
        return {token: num_pieces + number for token, number in _COMMANDS.items()}
    wrong = [token for token in _COMMANDS if not isinstance(stated.get(token), int) or stated[token] < num_pieces]
    if wrong:
        raise DataError(f"{file}: expected an id from {num_pieces} for {wrong[0]}, found {stated.get(wrong[0])!r}")
    return {token: number for token, number in stated.items() if isinstance(number, int)}


class GlmPieces:
    """Commands and the pieces between them; spaces beside a command belong to it, as in transformers.

    Args:
        model: The sentencepiece model.
        commands: Id by command.
    """

    def __init__(self, model: SentencePieceModel, commands: dict[str, int]) -> None:
        self._model = model
        self.commands = tuple(commands)
        self.vocabulary = model.vocabulary | commands
        names = "|".join(re.escape(each) for each in sorted(commands, key=len, reverse=True))
        self._pattern = re.compile(rf"\s*({names})\s*")

    def pieces(self, text: str) -> list[Piece]:
        """Cut a text."""
        found: list[Piece] = []
        at = 0
        for match in self._pattern.finditer(text):
            found += self._between(text, at, match.start())
            found.append(Piece(match[1], match.start(), match.end()))
            at = match.end()
        return found + self._between(text, at, len(text))

    def _between(self, text: str, start: int, end: int) -> list[Piece]:
        return [Piece(token, start + first, start + last) for token, first, last in self._model.pieces(text[start:end])]

    def text(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens; commands stand there as they are written."""
        parts: list[str] = []
        run: list[str] = []
        for token in tokens:
            if token in self.commands:
                parts += [self._model.text(run), token]
                run = []
            else:
                run.append(token)
        return "".join([*parts, self._model.text(run)])
