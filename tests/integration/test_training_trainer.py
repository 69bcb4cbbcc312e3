"""SessionGRPOTrainer against an independent computation of the clipped token-mean loss."""

from __future__ import annotations

import functools
import inspect
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from agentkit.training.batch import select_rows
from agentkit.training.forward import choose_mode, pack, token_logps
from agentkit.training.trainer import SessionGRPOTrainer, check_contract, grpo_config
from tests.integration import tiny_policy as tiny

pytestmark = pytest.mark.integration
LOW, HIGH = 0.2, 0.28


def trainer(tmp_path: Path, model: Any, collect: Any, **changes: Any) -> SessionGRPOTrainer:
    settings: dict[str, Any] = {
        "steps": 1, "sessions_per_step": 12, "micro_batch_rows": 4, "learning_rate": 1e-3,
        "temperature": 1.0, "clip_low": LOW, "clip_high": HIGH, "max_grad_norm": 1e9,
        "dtype": "float32", "gradient_checkpointing": False, "seed": 3,
    }  # fmt: skip
    share = changes.pop("share_prefixes", True)
    callbacks = changes.pop("callbacks", None)
    config = grpo_config(tmp_path / "out", **(settings | changes))
    config.save_strategy = "no"
    return SessionGRPOTrainer(
        model, collect=collect, args=config, tokenizer=tiny.tokenizer(), share_prefixes=share,
        callbacks=callbacks,
    )  # fmt: skip


def gradient_recorder() -> Any:
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        def __init__(self) -> None:
            self.gradients: dict[str, torch.Tensor] = {}

        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            self.gradients = {
                n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
            }

    return Recorder()


def by_hand(model: Any, chosen: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """sum over sampled tokens of −min(r·A, clip(r, 1−low, 1+high)·A) / number of sampled tokens,
    r = exp(logp − engine logprob): DAPO's token mean (Yu et al. 2025), one row at a time."""
    model.zero_grad()
    total = torch.zeros(())
    for item in chosen.rows:
        row = item.row
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        logp = model(input_ids=ids).logits[0].log_softmax(-1)
        for k, (token, on, old) in enumerate(
            zip(row.completion_ids, row.mask, row.logprobs, strict=True)
        ):
            if on:
                ratio = (logp[len(row.prompt_ids) + k - 1, token] - old).exp()
                capped = ratio.clamp(1 - LOW, 1 + HIGH)
                total = total - torch.min(ratio * item.advantage, capped * item.advantage)
    loss = total / chosen.tokens
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return loss.detach(), found


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("shift", [0.0, 0.15, -0.3])
def test_loss_and_gradient_equal_the_formula(tmp_path: Path, share: bool, shift: float) -> None:
    model = tiny.lora_model()
    groups = tiny.groups(model, 1, shift=shift)
    chosen = select_rows(groups)
    assert len(chosen.rows) % 3, "the row count must not divide, so that filling is exercised"
    loss, gradients = by_hand(model, chosen)
    recorder = gradient_recorder()
    made = trainer(tmp_path, model, lambda step: groups, share_prefixes=share, callbacks=[recorder])
    made.train()
    logged = made.state.log_history[0]["loss"]
    assert logged == pytest.approx(loss.item(), abs=2e-6)
    assert set(recorder.gradients) == set(gradients) and all("lora_" in n for n in gradients)
    for name, wanted in gradients.items():
        torch.testing.assert_close(recorder.gradients[name], wanted, rtol=2e-4, atol=2e-6)


def test_gradient_positions_are_mask_and_advantage(tmp_path: Path) -> None:
    model = tiny.lora_model()
    groups = tiny.groups(model, 2)

    class Watched(SessionGRPOTrainer):
        kept: list[torch.Tensor]

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            found[0].retain_grad()
            self.kept.append(found[0])
            return found

    made = trainer(tmp_path, model, lambda step: groups)
    made.__class__ = Watched
    made.kept = []
    made.train()
    assert len(made.kept) == len(made._buffered_inputs) > 1
    count = 0
    for part, logps in zip(made._buffered_inputs, made.kept, strict=True):
        wanted = (part["completion_mask"] * part["tool_mask"]).bool()
        wanted &= (part["advantages"] != 0).unsqueeze(1)
        assert torch.equal(logps.grad != 0, wanted)
        count += int(wanted.sum())
    assert count == select_rows(groups).tokens > 0


def test_only_lora_parameters_move(tmp_path: Path) -> None:
    model = tiny.lora_model()
    groups = tiny.groups(model, 3)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    trainer(tmp_path, model, lambda step: groups).train()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {n for n in before if "lora_" in n}


def test_step_without_signal_moves_neither_weights_nor_momentum(tmp_path: Path) -> None:
    model = tiny.lora_model()
    good = tiny.groups(model, 4)
    flat = tiny.groups(model, 5)
    for group in flat:
        for s in group:
            s.record.reward = 1.0
    seen: list[dict[str, torch.Tensor]] = []

    def collect(step: int) -> Any:
        seen.append({n: p.detach().clone() for n, p in model.named_parameters()})
        return [good, flat, good][step]

    made = trainer(tmp_path, model, collect, steps=3)
    made.train()
    changed = [any(not torch.equal(a[n], b[n]) for n in a) for a, b in itertools.pairwise(seen)]
    assert changed == [True, False]
    steps = {int(s["step"]) for s in made.optimizer.state.values()}
    assert steps == {2}, "the empty step must not count for Adam"


def test_statistics_before_the_update(tmp_path: Path) -> None:
    model = tiny.lora_model()
    made = trainer(tmp_path, model, lambda step: tiny.groups(model, 6))
    made.train()
    same = made.token_statistics()
    assert same["ratio_in_band"] == 1.0 and same["clip_fraction"] == 0.0
    assert same["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    # Engine logprobs 0.4 too high: every ratio is exp(−0.4) = 0.67, outside the band.
    model = tiny.lora_model()
    made = trainer(tmp_path, model, lambda step: tiny.groups(model, 6, shift=0.4))
    made.train()
    off = made.token_statistics()
    assert off["ratio_in_band"] == 0.0
    assert off["ratio_mean"] == pytest.approx(0.67032, abs=1e-3)
    assert off["clip_fraction"] > 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_forward_equals_trl(tmp_path: Path, temperature: float) -> None:
    """Log-probabilities, entropies and gradients, against TRL's own method on padded rows."""
    model = tiny.lora_model()
    made = trainer(tmp_path, model, lambda step: tiny.groups(model, 7), temperature=temperature)
    batch = made._generate_and_score_completions([])
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    on = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    keep = batch["completion_ids"].size(1)
    mask = batch["completion_mask"].float()
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0)) * mask

    def run(function: Any) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        logps, entropies = function()
        (logps * weights).sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return logps * mask, entropies * mask, grads

    theirs = run(
        lambda: GRPOTrainer._get_per_token_logps_and_entropies(
            made, made.model, ids, on, keep, compute_entropy=True
        )[:2]
    )
    assert choose_mode(model) == "shared"
    for mode in ("shared", "separate"):
        ours = run(functools.partial(token_logps, model, ids, on, keep, temperature, mode))
        torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=2e-5)
        for a, b in zip(ours[2], theirs[2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


def test_prefix_tree_shares_what_rows_share() -> None:
    rows = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 9], [7], [1, 2, 3, 4]]
    tree = pack(rows)
    assert len(tree.tokens) == 4 + 2 + 1 + 1
    for row, path in zip(rows, tree.paths, strict=True):
        assert [tree.tokens[n] for n in path] == row
        assert [tree.depths[n] for n in path] == list(range(len(row)))
    covered = [n for span in tree.spans for n in range(span.start, span.end)]
    assert covered == list(range(len(tree.tokens)))
    for span in tree.spans:
        path = next(p for p in tree.paths if span.start in p)
        assert path[: path.index(span.start)] == span.ancestors


def test_contract_of_the_pinned_trl() -> None:
    """What the overriding rests on: names, and which keys the loss reads."""
    check_contract()
    source = inspect.getsource(GRPOTrainer._compute_loss)
    for key in (
        "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask",
        "advantages", "old_per_token_logps", "num_items_in_batch",
    ):  # fmt: skip
        assert f'"{key}"' in source, key
    prepare = inspect.getsource(GRPOTrainer._prepare_inputs)
    assert "self._generate_and_score_completions(generation_batch)" in prepare
    assert "split_tensor_dict(generation_batch, self.args.steps_per_generation)" in prepare
