"""Writing text with the language models of the zoo: greedy, sampled or by beam search, with caches, streamed or at once."""

from modelzoo.generation.answers import answer
from modelzoo.generation.generate_text import generate, stream
from modelzoo.generation.prepack import prepacked
from modelzoo.generation.result import Generation
from modelzoo.generation.settings import GenerationSettings

__all__ = ["Generation", "GenerationSettings", "answer", "generate", "prepacked", "stream"]
