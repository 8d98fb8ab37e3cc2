"""The images of the small examples: the digits of scikit-learn, or noisy bars where that is not installed."""

import numpy as np

TRAINED = 1440
"""The first images are for training, the rest for validation."""


def load():
    """Images (N, 8, 8) from 0 to 1, and labels from 0 to 9, shuffled alike on all workers."""
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
