"""What is made hostile: a folder of each kind, which of its files are changed and how, who reads it, and who says what is right."""

import hashlib
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mutants import mutated_bytes, mutated_header, mutated_json
from safetensors import safe_open
from safetensors.torch import save_file

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("runtime", "training", "data", "conformance")]
torch.set_num_threads(1)

Change = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """One kind of folder."""

    make: Callable[[Path], object]
    """Fills an empty folder with what is right."""
    changes: dict[str, Change]
    """How each of its files is made hostile; a name may be a pattern."""
    read: Callable[[Path], Any]
    """Reads it as users do, and returns something to compare."""
    reference: Callable[[Path], Any] | None = None
    """The same by other means; None where nothing but the right content may be read."""
    needs_reference: bool = False
    """Whether what the reference refuses must be refused here."""
    seal: Callable[[Path], None] | None = None
    """Makes the folder vouch for its changed content again."""

    def mutate(self, folder: Path, draw: random.Random) -> str:
        """Make one file of the folder hostile and say which."""
        pattern = draw.choice(list(self.changes))
        path = draw.choice(sorted(folder.glob(pattern)))
        path.write_bytes(self.changes[pattern](path.read_bytes(), draw))
        if self.seal is not None:
            self.seal(folder)
        return str(path.relative_to(folder))


def digest(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return dtype, shape and hash of each tensor."""
    return {
        key: f"{tensor.dtype} {list(tensor.shape)} "
        + hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for key, tensor in sorted(tensors.items())
    }


def numbers(tensor: torch.Tensor) -> Any:
    """Return a tensor's shape and values."""
    return [list(tensor.shape), tensor.detach().double().reshape(-1).tolist()]


# a safetensors file


def make_tensors(folder: Path) -> None:
    torch.manual_seed(0)
    tensors = {"z.weight": torch.randn(6, 5), "a": torch.randn(3, 4).half(), "ids": torch.arange(5), "empty": torch.zeros(0, 3)}
    save_file({**tensors, "mask": torch.tensor([True, False]), "ü": torch.tensor(3.5)}, folder / "w.safetensors", {"format": "pt"})


def read_tensors(folder: Path) -> Any:
    from modelzoo.hub.safetensors_file import SafetensorsFile

    file = SafetensorsFile(folder / "w.safetensors", str(folder / "w.safetensors"))
    try:
        return digest({key: file.read(key) for key in file.entries})
    finally:
        file.close()


def library_tensors(folder: Path) -> Any:
    with safe_open(folder / "w.safetensors", framework="pt") as file:
        return digest({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 - the handle is no mapping


# a model folder

BATCH = torch.tensor([[3, 5, 7, 2, 9, 11]])


def make_model(folder: Path, family: str = "bert", shard: str = "1GB") -> None:
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    made: dict[str, Any] = {
        "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**sizes, max_position_embeddings=18)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=18)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, num_key_value_heads=1, max_position_embeddings=18)
        ),
        "t5": lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0)
        ),
    }
    torch.manual_seed(0)
    model = made[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.1 + 0.2)
    model.save_pretrained(folder, max_shard_size=shard)


def read_model(folder: Path) -> Any:
    import modelzoo

    model = modelzoo.from_pretrained(folder, dtype="float32")
    more = {"decoder_input_ids": BATCH[:, :4]} if model.family == "t5" else {}
    with torch.no_grad():
        found = model(input_ids=BATCH, **more)
    return numbers(found.logits if found.logits is not None else found.last_hidden_state)


def their_model(folder: Path) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.from_pretrained(folder)
    architecture = json.loads((folder / "config.json").read_bytes()).get("architectures")
    model_class = getattr(transformers, architecture[0])
    model, info = model_class.from_pretrained(folder, config=config, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    more = {"decoder_input_ids": BATCH[:, :4]} if config.model_type == "t5" else {}
    with torch.no_grad():
        found = model.eval()(input_ids=BATCH, **more)
    return numbers(found.logits)


# a tokenizer's folder

TEXTS = ["the cat sat on the mat", "Naïve CAFÉ 123", "a [SEP] b <s>", "", "x" * 40]


def make_tokenizer(folder: Path, kind: str) -> None:
    import transformers
    from tiny_tokenizers import bert_folder, byte_level_folder
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    if kind == "generic":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "<s>", "</s>"]))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
        ).save_pretrained(folder)
        return
    config = {"tokenizer_class": "BertTokenizer" if kind == "bert" else "RobertaTokenizer", "model_max_length": 64}
    (bert_folder if kind == "bert" else byte_level_folder)(folder, config=config)
    if kind == "bert":  # the other keeps vocab.json and merges.txt
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def read_tokenizer(folder: Path) -> Any:
    from modelzoo.data import load_tokenizer

    tokenizer = load_tokenizer(folder)
    roles = [tokenizer.bos_id, tokenizer.eos_id]
    return [encoding.input_ids for encoding in tokenizer.encode(TEXTS)], tokenizer.vocab_size, len(roles)


def their_tokenizer(folder: Path) -> Any:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text)["input_ids"] for text in TEXTS], len(tokenizer), 2


# a recipe

RECIPE = """recipe: tiny
description: a recipe
model: {name: bert-base-uncased, task: classification, dropout: 0.1}
data: {name: super_glue/boolq, max_length: 256, columns: {text_a: question, text_b: passage, label: label}}
train: {epochs: 3.0, batch_size: 32, clip_norm: 1.0, seed: 42}
optimizer:
  lr: 2e-5
  betas: [0.9, 0.98]
schedule: {name: linear, warmup: 0.1}
evaluation: {every: 1ep, metric: accuracy}
checkpoint: {every: 500, keep_last: 2}
memory: {host: 8GiB, optimizer_update: deferred}
adapter: {method: lora, r: 8, targets: [query, value]}
"""


def mutated_recipe(content: bytes, draw: random.Random) -> bytes:
    import yaml

    if draw.random() < 0.5:
        return mutated_bytes(content, draw)
    values = (
        json.loads(mutated_json(json.dumps(yaml.safe_load(content)).encode(), draw).decode("utf-8", "replace") or "{}")
        if (draw.random() < 0.9)
        else [1]
    )
    return yaml.safe_dump(values, allow_unicode=True).encode("utf-8", "surrogatepass")


def quiet_recipe(content: bytes, draw: random.Random) -> bytes:
    """Return a mutant, another one where the draw gave something that YAML itself does not write."""
    while True:
        try:
            return mutated_recipe(content, draw)
        except (ValueError, RecursionError):
            continue


def read_recipe(folder: Path) -> Any:
    from modelzoo.config import load_settings

    return load_settings(str(folder / "recipe.yaml")).model_dump(mode="json")


def their_recipe(folder: Path) -> Any:
    """Return the settings with what the file says put over the defaults, and nothing that it does not say."""
    from modelzoo.config import dump_settings
    from modelzoo.config.yaml_file import read_mapping

    found = read_recipe(folder)
    again = folder / "again"
    again.mkdir(exist_ok=True)
    from modelzoo.config import load_settings

    settings = load_settings(str(folder / "recipe.yaml"))
    (again / "recipe.yaml").write_text(dump_settings(settings), encoding="utf-8")
    assert load_settings(str(again / "recipe.yaml")) == settings
    written, _ = read_mapping(folder / "recipe.yaml")
    default = {"recipe", *found}
    assert set(written) <= default, written
    for section, values in written.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            said = found[section][name]
            same = said == value or str(said) == str(value) or (isinstance(value, int | float) and float(said) == float(value))
            assert same or (value is None) or isinstance(value, dict | str), (section, name, value, said)
    return found


# a token store


def make_store(folder: Path) -> None:
    from tiny_tokenizers import bert_folder

    from modelzoo.data import load_tokenizer
    from modelzoo.data.store import build_store

    bert_folder(folder / "tokenizer")
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"text": text * count}) + "\n" for count in (1, 3) for text in TEXTS if text)
    )
    build_store([folder / "texts.jsonl"], load_tokenizer(folder / "tokenizer"), folder / "store")


def read_store(folder: Path) -> Any:
    from modelzoo.data import DataLimits, load_tokenizer
    from modelzoo.data.store import StoredDataset
    from modelzoo.data.tasks import Recipe

    tokenizer = load_tokenizer(folder / "tokenizer")
    recipe = Recipe(task="masked_lm", tokenizer=tokenizer, max_length=8, seed=3, source=str(folder / "store"))
    stored = StoredDataset(folder / "store", recipe, DataLimits())
    return [stored.item(index, epoch=epoch) for epoch in (0, 1) for index in range(len(stored))]


# an adapter


def make_adapter(folder: Path) -> None:
    import modelzoo
    from modelzoo.adapters import AdapterConfig, add_adapter, save_adapter

    make_model(folder / "base")
    model = modelzoo.from_pretrained(folder / "base")
    add_adapter(model, AdapterConfig.model_validate({"method": "lora", "r": 2, "alpha": 4}))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    save_adapter(model, folder / "adapter")


def read_adapter(folder: Path) -> Any:
    import modelzoo
    from modelzoo.adapters import load_adapter

    model = modelzoo.from_pretrained(folder / "base")
    load_adapter(model, folder / "adapter")
    with torch.no_grad():
        return numbers(model.eval()(input_ids=BATCH).logits)


def their_adapter(folder: Path) -> Any:
    import warnings

    import peft
    import transformers

    transformers.logging.set_verbosity_error()
    base = transformers.BertForMaskedLM.from_pretrained(folder / "base")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing.*")  # it only warns of tensors that are missing
        model = peft.PeftModel.from_pretrained(base, folder / "adapter")
    with safe_open(folder / "adapter" / "adapter_model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(peft.get_peft_model_state_dict(model)), "it passes over tensors of the file"
    with torch.no_grad():
        return numbers(model.eval()(input_ids=BATCH).logits)


# a training checkpoint


def make_checkpoint(folder: Path) -> None:
    from saved_models import save, trained

    from modelzoo.runtime import connect

    with connect(device="cpu") as world:
        save(folder / "checkpoints", 2, world, *trained())


def read_checkpoint(folder: Path) -> Any:
    from saved_models import trained

    from modelzoo.runtime import connect, find_latest, load_checkpoint, model_tensors, optimizer_tensors

    with connect(device="cpu") as world:
        found = find_latest(folder / "checkpoints")
        if found is None:
            from modelzoo.errors import CheckpointError

            raise CheckpointError(f"{folder}: none")
        model, optimizer = trained(0, seed=4)
        state = load_checkpoint(found.path, model=model, optimizer=optimizer, world=world)
        return {**digest(model_tensors(model)), **digest(optimizer_tensors(model, optimizer)), "state": state}


def resealed(folder: Path) -> None:
    """Give the manifest the hashes of the files as they are now, and its own checksum: what somebody who means harm would do."""
    from modelzoo.runtime.checkpoints.manifest import _checksum

    for path in folder.rglob("manifest.json"):
        values = None
        try:
            values = json.loads(path.read_bytes())
            for name, facts in values["files"].items():
                content = (path.parent / name).read_bytes()
                facts |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        except (ValueError, AttributeError, KeyError, TypeError, OSError, RecursionError):
            pass
        if isinstance(values, dict):
            rest = {key: value for key, value in values.items() if key != "checksum"}
            path.write_text(json.dumps(rest | {"checksum": _checksum(rest)}))


TARGETS: dict[str, Target] = {
    "a safetensors file": Target(
        make_tensors, {"w.safetensors": mutated_header}, read_tensors, library_tensors, needs_reference=True
    ),
    **{
        f"a config of {family}": Target(
            lambda folder, family=family: make_model(folder, family), {"config.json": mutated_json}, read_model, their_model
        )
        for family in ("bert", "gpt2", "llama", "t5")
    },
    "an index of shards": Target(
        lambda folder: make_model(folder, "bert", "2KB"),
        {"model.safetensors.index.json": mutated_json, "model-0*.safetensors": mutated_header},
        read_model,
        their_model,
    ),
    **{
        f"a tokenizer ({kind})": Target(
            lambda folder, kind=kind: make_tokenizer(folder, kind),
            changes,
            read_tokenizer,
            their_tokenizer,
        )
        for kind, changes in {
            "generic": {"tokenizer.json": mutated_json, "tokenizer_config.json": mutated_json},
            "bert": {"tokenizer.json": mutated_json, "tokenizer_config.json": mutated_json},
            "roberta": {"vocab.json": mutated_json, "merges.txt": mutated_bytes, "tokenizer_config.json": mutated_json},
        }.items()
    },
    "a recipe": Target(
        lambda folder: (folder / "recipe.yaml").write_text(RECIPE), {"recipe.yaml": quiet_recipe}, read_recipe, their_recipe
    ),
    "a token store": Target(
        make_store,
        {"store/store.json": mutated_json, "store/tokens.idx": mutated_bytes, "store/tokens.bin": mutated_bytes},
        read_store,
    ),
    "an adapter": Target(
        make_adapter,
        {
            "adapter/adapter_config.json": mutated_json,
            "adapter/adapter_model.safetensors": mutated_header,
        },
        read_adapter,
        their_adapter,
    ),
    "a checkpoint": Target(
        make_checkpoint,
        {
            f"checkpoints/step-2/{name}": change
            for name, change in {"manifest.json": mutated_json, "state.json": mutated_json, "*.safetensors": mutated_header}.items()
        },
        read_checkpoint,
    ),
    "a checkpoint that vouches for its damage": Target(
        make_checkpoint,
        {
            f"checkpoints/step-2/{name}": change
            for name, change in {"manifest.json": mutated_json, "state.json": mutated_json, "*.safetensors": mutated_header}.items()
        },
        read_checkpoint,
        read_checkpoint,
        seal=resealed,
    ),
}
