"""`hf:REPO_OR_FOLDER`: an image or text classifier of Hugging Face, or an adapter, with its processor or tokenizer."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peppermill.plumbing.files import read_object
from peppermill.plumbing.optional import importing
from peppermill.sources.source import Source, one_clear_line, split_query, weights_and_classes, whole_number

LONGEST_TEXT = 512  # in tokens; attention costs the square of it
HEADS = ("classifier.weight", "classifier.out_proj.weight", "score.weight")  # last layers, trained with an adapter
ABSENT = (OSError, ValueError, TypeError)  # of the library, if a folder has weights and no processor or tokenizer


def source(text: str, pretrained: bool = True) -> Source:
    """The classifier in a folder that `save_pretrained` wrote, or of a repository of the hub.

    A folder with `adapter_config.json` gives the base that it names, with the adapter of PEFT around it.
    `?revision=...` chooses a version, `?length=128` cuts or pads texts to that many tokens, `?pretrained=false` gives
    the architecture alone.
    """
    with importing("`hf:` models need transformers", "transformers", "transformers"):
        import transformers
    name, options = split_query(text, "hf", ("pretrained", "revision", "length"))
    where = {"revision": options["revision"]} if "revision" in options else {}
    adapter, settings = None, Path(name) / "adapter_config.json"
    if settings.is_file():
        with importing("adapters need peft", "peft", "peft"):
            import peft
        adapter, name = name, str(read_object(settings).get("base_model_name_or_path"))
    with one_clear_line(f"hf:{name}", _cure(Path(name))):
        config = transformers.AutoConfig.from_pretrained(name, **where)
    saved = next(iter(config.architectures or ()), "")  # the class that the weights were saved from
    if adapter:
        saved = ""  # a base may be saved without a head, or with another one
        with one_clear_line(f"hf:{adapter}", "expected a folder that `save_pretrained` of a PEFT model wrote"):
            heads = [v for k, v in peft.load_peft_weights(adapter, "cpu").items() if k.endswith(HEADS)]
        if heads:
            config.num_labels = len(heads[-1])
    if saved and not saved.endswith(("ForImageClassification", "ForSequenceClassification")):
        raise ValueError(
            f"hf:{name} is a {saved}: expected an image classifier (...ForImageClassification) or a text classifier "
            "(...ForSequenceClassification)."
        )
    of_pictures = type(config) in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    is_image = saved.endswith("ForImageClassification") if saved else of_pictures
    kind = getattr(transformers, f"AutoModelFor{'Image' if is_image else 'Sequence'}Classification")
    with one_clear_line(f"hf:{name}", _cure(Path(name))):
        if weights_and_classes(options, pretrained)[0]:
            # An adapter brings its own head. The one that it replaces is random, and part of the fingerprint.
            other_head = {"ignore_mismatched_sizes": True} if adapter else {}
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = kind.from_pretrained(name, config=config, **where, **other_head)
        else:
            model = kind.from_config(config)
    if adapter:
        with one_clear_line(f"hf:{adapter}", "its base is another network than the one that it was trained on"):
            model = peft.PeftModel.from_pretrained(model, adapter)
    prepare = _preparation(transformers, name, where, options, config, is_image)
    return Source(model.eval(), prepare, tuple(config.id2label[k] for k in sorted(config.id2label)))


def _cure(path: Path) -> str:
    if path.is_dir():
        return "expected the folder of a classifier that `model.save_pretrained(folder)` wrote"
    beside = [found.parent.name for found in path.parent.glob("*/config.json")] if path.name else []
    near = [f"hf:{path.with_name(name)}" for name in difflib.get_close_matches(path.name, beside, n=3)]
    wanted = "name a folder that `model.save_pretrained(folder)` wrote, or a repository of the hub, with a connection"
    return f"did you mean {', '.join(near)}? Or {wanted}" if near else wanted


def _preparation(
    transformers: Any, name: str, where: dict[str, str], options: dict[str, str], config: Any, is_image: bool
) -> Callable[[Any], Any] | None:
    """A PIL image -> pixel values [channels, height, width]; a string -> tokens [length] and what goes with them.

    None if the folder has neither image processor nor tokenizer. Without a tokenizer's files, the library makes one up
    that knows no word, or two signs at most.
    """
    kind = transformers.AutoImageProcessor if is_image else transformers.AutoTokenizer
    try:
        processor = kind.from_pretrained(name, **where)
    except ABSENT:
        return None
    if is_image:
        return lambda image: processor(image, return_tensors="pt")["pixel_values"][0]
    if processor.pad_token is None or len(processor) <= len(processor.all_special_tokens) + 2:
        return None
    known = getattr(config, "max_position_embeddings", LONGEST_TEXT)
    length = whole_number(options, "length", min(LONGEST_TEXT, processor.model_max_length, known))

    def prepare(text: str) -> dict[str, Tensor]:
        found = processor(text, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        return {key: value[0] for key, value in found.items()}

    return prepare
