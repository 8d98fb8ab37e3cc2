"""Loads the images of the small examples: the digits of scikit-learn, or noisy bars if it is not installed."""

import numpy as np

TRAINED = 1440
"""The number of training images. The other images are for validation."""


def load():
    """Return images (N, 8, 8) from 0 to 1, and labels from 0 to 9, in the same random order on all workers."""
    random = np.random.default_rng(0)
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        labels = random.integers(10, size=1800)
        bars = np.eye(64, dtype="float32")[6 * labels].reshape(-1, 8, 8)
        return (bars + random.uniform(0, 1, bars.shape).astype("float32")) / 2, labels
    digits = load_digits()
    order = random.permutation(len(digits.target))
    return (digits.images[order] / 16).astype("float32"), digits.target[order]
