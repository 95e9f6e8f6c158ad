"""Small pre-trained networks as their libraries save them, with random weights made on the spot."""

import numpy as np
import torch
from PIL import Image
from typer.testing import CliRunner

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dull", "fine", "film", "play"]
NAMES = {0: "bad", 1: "mixed", 2: "good"}


def seeded(build):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def vit(folder):
    """A vision transformer for images of 16 pixels, with its image processor."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        id2label=NAMES, initializer_range=0.5,
    )  # fmt: skip
    seeded(lambda: transformers.ViTForImageClassification(config)).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def resnet(folder):
    """A residual network of transformers, without a processor."""
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], id2label=NAMES)
    seeded(lambda: transformers.ResNetForImageClassification(config)).save_pretrained(folder)
    return folder


def bert(folder):
    """A text classifier with its tokenizer."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=12, id2label=NAMES, initializer_range=0.5,
    )  # fmt: skip
    seeded(lambda: transformers.BertForSequenceClassification(config)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def picture(width=40, height=30):
    """A picture whose left half is red and whose right half is blue."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 200
    return Image.fromarray(pixels)


def overconfident_labels(logits, seed=0):
    """Labels of a network three times as sure of itself as it should be: PEP and a temperature help it."""
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial((logits.detach() / 3).softmax(dim=1), 1, generator=generator)[:, 0]


def run(*arguments):
    """One command of the command line."""
    from peppermill.cli.app import app

    return CliRunner().invoke(app, arguments)
