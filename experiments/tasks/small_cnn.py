"""A small convolutional network for small images, quick to train on one CPU core."""

from __future__ import annotations

import torch
from torch import nn

_WIDTHS = (32, 64, 128)


class SmallCnn(nn.Module):
    """Images (n, 3, h, w), h and w at least 8 -> logits (n, classes); about 100,000 parameters for 62 classes.

    Group instead of batch normalisation (Wu, He, ECCV 2018): the network has no running statistics, which would differ
    between peers, so that its evaluation depends on the averaged parameters alone.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in _WIDTHS:
            layers += [
                nn.Conv2d(inputs, width, 3, stride=2 if inputs == 3 else 1, padding=1, bias=False),
                nn.GroupNorm(8, width),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(2),
            ]
            inputs = width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))
