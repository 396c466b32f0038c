"""Plain chat templates for tokenizers that have none, by the names that people know."""

__all__ = ["NAMED_TEMPLATES", "NEEDED_TOKENS"]

_ALPACA = """\
{%- for message in messages %}
{%- if message['role'] == 'system' %}
{{- message['content'] | trim + '\\n\\n' }}
{%- elif message['role'] == 'user' %}
{%- if loop.first %}
{{- 'Below is an instruction that describes a task. Write a response that appropriately completes the request.\\n\\n' }}
{%- endif %}
{{- '### Instruction:\\n' + message['content'] | trim + '\\n\\n' }}
{%- else %}
{{- '### Response:\\n' }}
{%- generation %}
{{- message['content'] | trim + eos_token }}
{%- endgeneration %}
{%- if not loop.last %}
{{- '\\n\\n' }}
{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '### Response:\\n' }}
{%- endif %}
"""

_PLAIN = """\
{%- for message in messages %}
{%- if message['role'] == 'assistant' %}
{{- 'Assistant:' }}
{%- generation %}
{{- ' ' + message['content'] | trim + eos_token }}
{%- endgeneration %}
{%- if not loop.last %}
{{- '\\n\\n' }}
{%- endif %}
{%- else %}
{{- message['role'] | capitalize + ': ' + message['content'] | trim + '\\n\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- 'Assistant:' }}
{%- endif %}
"""

_CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}
{{- message['content'] | trim + '<|im_end|>' }}
{%- endgeneration %}
{%- else %}
{{- message['content'] | trim + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

NAMED_TEMPLATES = {"alpaca": _ALPACA, "plain": _PLAIN, "chatml": _CHATML}
"""Jinja by name. alpaca: that of Stanford Alpaca; plain: `User: ...` and `Assistant: ...`; chatml: OpenAI's, of Qwen and others."""

NEEDED_TOKENS = {"chatml": ("<|im_start|>", "<|im_end|>")}
"""Tokens that a template needs in the vocabulary: cut into letters they would mean nothing."""
