"""The gradient of one batch from its pieces, and from several processes, as if it were computed at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from accelerate.utils import broadcast
from torch import Tensor, nn

from eval.errors import UserError
from teachers.data.batches import cut
from teachers.data.encoded_dataset import Batch
from teachers.losses.loss import term_shares
from teachers.signals.hooks import Signals, observe
from teachers.training.checkpoint import random_states, set_random_states
from teachers.training.training_task import BoundTask

Terms = dict[str, Tensor]


class Accumulation:
    """Computes the gradients of an optimizer step.

    A term that is a mean over tokens, labels or pairs weighs in each piece by how many there are (``Loss.counts``). A
    loss that compares the rows of a batch with each other (``Loss.whole_batch``) gets the outputs of all pieces and
    processes at once; each piece then runs a second time for its gradients.

    Args:
        accelerator: Accelerate's, for devices, processes and precision.
        pieces: Pieces into which each process cuts its rows of a batch.

    Source:
        Outputs first, gradients in a second pass: Gao, Zhang, Han, Callan 2021, arXiv 2101.06983.
    """

    def __init__(self, accelerator: Any, pieces: int) -> None:
        self.accelerator, self.pieces = accelerator, pieces
        self.processes: int = accelerator.num_processes

    def begin(self, modules: Iterable[nn.Module]) -> None:
        """Give all processes the first one's weights."""
        self._agree(tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))

    def backward(self, bound: BoundTask, rows: list[int], epoch: int, progress: float) -> tuple[Terms, int]:
        """Add the gradients of a batch to the parameters.

        Args:
            bound: What is trained.
            rows: Of the whole batch, over all processes.
            epoch: Decides what chance changes in rows.
            progress: How much of the training lies behind, 0 to 1.

        Returns:
            The terms of the loss, means over the whole batch, and how many tokens it has.

        Raises:
            UserError: If nothing that the loss reads is trained.
        """
        modules = (bound.student.model, bound.loss.modules)
        self._agree(buffer for module in modules for buffer in module.buffers() if buffer.is_floating_point())
        shares = cut(rows, self.processes, bound.loss.groups)
        own = shares[self.accelerator.process_index]
        # A process without rows repeats one that weighs nothing, for all take part in what is exchanged.
        weight = len(own) * self.processes / len(rows)
        parts = [part for part in cut(own or rows[:1], self.pieces, bound.loss.groups) if part]
        if bound.loss.whole_batch and max(len(parts), self.processes) > 1:
            terms, tokens = self._at_once(bound, shares, parts, epoch, progress)
        else:
            pieces = [bound.rows.batch(part, epoch, progress).to(self.accelerator.device) for part in parts]
            terms, tokens = self._piecewise(bound, pieces, weight)
        self._exchange(bound)
        return terms, tokens

    def _piecewise(self, bound: BoundTask, pieces: Sequence[Batch], weight: float) -> tuple[Terms, int]:
        sums: Terms = {}
        for piece, share in zip(pieces, self._shares(bound, pieces, weight), strict=True):
            with self.accelerator.autocast():
                piece = bound.loss.prepare(piece)
                signals = observe(bound.student.model, piece.inputs, bound.loss.reads)
                losses = bound.loss(signals, piece)
                terms = {name: value * share.get(name, share[""]) for name, value in losses.items()}
            self._backward(bound, sum(terms.values()))
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value.detach().float()
        means = self.accelerator.reduce(torch.stack([*sums.values()]), "mean")
        return dict(zip(sums, means, strict=True)), self._tokens(pieces if weight else ())

    def _shares(self, bound: BoundTask, pieces: Sequence[Batch], weight: float) -> list[dict[str, float]]:
        """Return what the mean of each term over a piece is multiplied by, so that sums are means over the batch.

        The entry without a name is for the terms that are means over rows.
        """
        parts, whole = [{"": weight * len(piece)} for piece in pieces], {"": float(sum(map(len, pieces)))}
        if self.processes == 1 and len(pieces) == 1:
            return term_shares(parts, whole)
        found = [bound.loss.counts(piece) for piece in pieces]
        if not found[0]:
            return term_shares(parts, whole)
        counts = torch.tensor([[float(value) for value in one.values()] for one in found]) * (weight > 0)
        counts = counts.to(self.accelerator.device)
        total = self.accelerator.reduce(counts.sum(dim=0), "sum")
        whole |= dict(zip(found[0], total.tolist(), strict=True))
        numbers = (counts * self.processes).tolist()
        return term_shares(
            [part | dict(zip(found[0], n, strict=True)) for part, n in zip(parts, numbers, strict=True)], whole
        )

    def _at_once(
        self,
        bound: BoundTask,
        shares: Sequence[list[int]],
        parts: Sequence[list[int]],
        epoch: int,
        progress: float,
    ) -> tuple[Terms, int]:
        """Compute the loss from the outputs of all pieces and processes, then the gradients piece by piece."""
        process = self.accelerator.process_index
        is_idle = not shares[process]
        ends = [0, *accumulate(map(len, shares))]
        whole = bound.rows.batch([row for share in shares for row in share], epoch, progress)
        with self.accelerator.autocast():
            whole = bound.loss.prepare(whole.to(self.accelerator.device))
        sizes = [len(whole.part(*ends[number : number + 2]).rows) for number in range(len(shares))]
        first, start = (0, 0) if is_idle else (ends[process], sum(sizes[:process]))
        pieces, states, seen = [], [], []
        for part in parts:
            pieces.append(whole.part(first, first + len(part)))
            first += len(part)
            states.append(random_states())
            with torch.no_grad(), self.accelerator.autocast():
                seen.append(observe(bound.student.model, pieces[-1].inputs, bound.loss.reads).tensors())
        own = {key: torch.cat([tensors[key] for tensors in seen]).detach() for key in seen[0]}
        outputs = {key: self._gathered(tensor, sizes).requires_grad_() for key, tensor in own.items()}
        with self.accelerator.autocast():
            terms = bound.loss(Signals.of(outputs), whole)
        self._backward(bound, sum(terms.values()))
        for piece, state in zip(pieces, states, strict=True):
            set_random_states(state)
            with self.accelerator.autocast():
                signals = observe(bound.student.model, piece.inputs, bound.loss.reads).tensors()
            stop = start + len(piece.rows)
            gradients = {key: one.grad[start:stop] for key, one in outputs.items() if one.grad is not None}
            weighted = [(signals[key] * gradient).sum() for key, gradient in gradients.items()]
            # The gradients of the outputs, and of what is trained beside the student, have float16's scale already.
            torch.autograd.backward(self._trained(bound, sum(weighted) * (0 if is_idle else self.processes)))
            start = stop
        return {name: value.detach().float() for name, value in terms.items()}, self._tokens(() if is_idle else pieces)

    def _gathered(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the rows of all processes, in order."""
        if self.processes == 1:
            return tensor
        most = max(sizes)
        padded = torch.cat([tensor[:most], tensor.new_zeros(most - len(tensor[:most]), *tensor.shape[1:])])
        every = self.accelerator.gather(padded[None])
        return torch.cat([part[:size] for part, size in zip(every, sizes, strict=True)])

    def _backward(self, bound: BoundTask, loss: Any) -> None:
        self.accelerator.backward(self._trained(bound, loss))

    def _trained(self, bound: BoundTask, loss: Any) -> Tensor:
        """Return a loss whose gradient reaches something that is trained."""
        if not (isinstance(loss, Tensor) and loss.requires_grad):
            raise UserError(
                f"training of {bound.student.name}: nothing that the loss reads is trained; freeze less, or leave out "
                "unfreeze, which begins with the head"
            )
        return loss

    def _tokens(self, pieces: Sequence[Batch]) -> int:
        count = sum((float(piece.mask.sum()) for piece in pieces), 0.0)  # of one type, in a process without rows too
        own = torch.tensor(count, device=self.accelerator.device)
        return round(float(self.accelerator.reduce(own, "sum")))

    def _agree(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes what the first one has, such as ranges that its forward passes measured."""
        if self.processes > 1:
            with torch.no_grad():
                for tensor in tensors:
                    tensor.copy_(broadcast(tensor.detach().clone()))

    def _exchange(self, bound: BoundTask) -> None:
        """Average the gradients over processes.

        Not by the hooks of ``DistributedDataParallel``: what a loss reads inside a network is no output of it, and
        gradients that such a loss leaves out would be waited for in vain.
        """
        if self.processes == 1:
            return
        modules = (bound.student.model, bound.loss.modules)
        parameters = [one for module in modules for one in module.parameters() if one.requires_grad]
        parameters = list(dict.fromkeys(parameters))
        own = torch.tensor([float(one.grad is not None) for one in parameters], device=self.accelerator.device)
        used = self.accelerator.reduce(own, "sum").tolist()  # a batch may give one process nothing to answer
        parameters = [one for one, count in zip(parameters, used, strict=True) if count]
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        means = self.accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "mean")
        for one, mean in zip(parameters, means.split([one.numel() for one in parameters]), strict=True):
            one.grad = mean.view_as(one)
