"""How weights are updated: the optimizer, its learning rate in each step, and the loss scale for float16."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp

MOMENTUM = ("sgd", "nag", "lars")


def make_trainer(args: Namespace, net: gluon.HybridBlock, kv: mx.kv.KVStore | None, update_here: bool) -> gluon.Trainer:
    parameters = net.collect_params()
    settings: dict[str, Any] = {"learning_rate": args.lr, "wd": args.wd}
    settings["param_idx2name"] = dict(enumerate(parameters))  # LARS uses the names to leave out biases and BatchNorm
    settings["multi_precision"] = args.dtype == "float16"
    if args.optimizer in MOMENTUM:
        settings["momentum"] = args.momentum
    trainer = gluon.Trainer(
        list(parameters.values()),
        args.optimizer,
        settings,
        kvstore=kv,
        update_on_kvstore=False if update_here else None,
    )
    if args.dtype != "float32":
        scale_losses(trainer)
    return trainer


def scale_losses(trainer: gluon.Trainer) -> None:
    """From now on, scale losses so that small gradients do not vanish in float16.

    The Trainer skips an update whose gradients overflow. The scale is then halved, and doubled after 2000 updates
    without overflow (Micikevicius et al., 2018).
    """
    trainer._amp_loss_scaler, trainer._amp_original_scale = amp.loss_scaler.LossScaler(), trainer._scale


def backward(losses: list[mx.nd.NDArray], trainer: gluon.Trainer) -> None:
    """Compute the gradients of these losses, in the scope that records them."""
    if getattr(trainer, "_amp_loss_scaler", None) is None:
        autograd.backward(losses)
        return
    with amp.scale_loss(losses, trainer) as scaled:
        autograd.backward(scaled)


def learning_rate(args: Namespace, done: float, one_step: float = 0.0) -> float:
    """Return the learning rate: a linear rise to `--lr`, then a cosine to zero or a factor at given epochs.

    `done` and `one_step` are in epochs.
    """
    warmup = min(args.lr_warmup_epochs, args.epochs)
    if done < warmup:
        return args.lr * min(1.0, (done + one_step) / warmup)
    if args.lr_decay == "step":
        return args.lr * args.lr_factor ** sum(done >= epoch for epoch in args.lr_steps)
    if args.lr_decay == "cosine":
        return args.lr * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (args.epochs - warmup)))
    return args.lr


def remember_rate(trainer: gluon.Trainer, rate: float) -> None:
    """Set the rate of the step before the first one of a resumed training: LARS scales its momentum by the ratio."""
    if hasattr(trainer.optimizer, "cur_lr"):
        trainer.optimizer.cur_lr = rate
