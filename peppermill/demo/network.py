"""The embedded network: a small convolutional classifier of Fashion-MNIST, built as the paper builds its own.

Two convolutions and one dense layer, each followed by ReLU and then batch normalization, as in Section 3.2; narrower
than the paper's network and with a stride in place of its first pooling, so that its weights fit in half a megabyte and
the demo in a minute.
"""

from __future__ import annotations

from torch import Tensor, nn

CLASS_NAMES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

EPSILON = 1e-3  # of batch normalization, as in Keras and so in the paper: tames channels that are almost never active


class DemoNetwork(nn.Module):
    """Logits of the ten garments, [batch, 10], from images [batch, 1, 28, 28] scaled to 0..1."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(16, EPSILON),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.BatchNorm2d(32, EPSILON),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(800, 128),
            nn.ReLU(),
            nn.BatchNorm1d(128, EPSILON),
            nn.Linear(128, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits
