"""The digits of scikit-learn for softmax regression: rows of 64 pixels and a one, and labels as rows of ten."""

import numpy as np
from sklearn.datasets import load_digits

TRAINED = 1440
"""The first rows train, the others are held out."""


def shuffled(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, in an order of their own for each seed."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = np.hstack([digits.data[order] / 16, np.ones((len(order), 1))]).astype("float32")
    return images, np.eye(10, dtype="float32")[digits.target[order]]


def shares(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The probabilities of the ten digits, a row for each image."""
    powers = np.exp(x @ weights - (x @ weights).max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
