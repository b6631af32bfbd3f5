"""Texts of any lengths through the model without padding: several share a row, and none sees another.

Position ids restart with every text and the mask keeps attention inside it, so each state equals that of the text
alone. Rows are filled best-fit, the longest text first; what is left at their ends is the only padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import attention_masks

__all__ = ["PackedStates", "Row", "pack", "packed_states"]

Row = list[int]

#: Rows are as wide as a multiple of this, so that attention kernels meet few different shapes.
_WIDTH_STEP = 64


@dataclass(frozen=True)
class PackedStates:
    """Last hidden states of packed texts: `hidden` (N, H), text i being its positions `spans[i]`, end exclusive."""

    hidden: torch.Tensor
    spans: list[tuple[int, int]]

    def ends(self) -> torch.Tensor:
        """The state at the last position of every text, (texts, H)."""
        last = torch.tensor([end - 1 for _, end in self.spans], device=self.hidden.device)
        return self.hidden[last]


def pack(lengths: Sequence[int], row_tokens: int) -> list[Row]:
    """Texts (by index) in rows of at most `row_tokens` positions; a longer text gets a row of its own.

    Best fit decreasing: every text goes to the fullest row that still has room.
    """
    rows: list[Row] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        fitting = [row for row, left in enumerate(room) if left >= lengths[index]]
        if fitting:
            row = min(fitting, key=lambda row: room[row])
        else:
            row = len(rows)
            rows.append([])
            room.append(max(row_tokens, lengths[index]))
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def packed_states(backbone: Backbone, sequences: Sequence[Sequence[int]], row_tokens: int) -> PackedStates:
    """Last hidden states of framed `sequences` of token ids, in one forward pass of packed rows."""
    rows = pack([len(sequence) for sequence in sequences], row_tokens)
    width = max(sum(len(sequences[index]) for index in row) for row in rows)
    width = -(-width // _WIDTH_STEP) * _WIDTH_STEP
    ids = torch.full((len(rows), width), backbone.eos_id)
    owners = torch.full((len(rows), width), -1)  # which text a position belongs to; -1 is padding
    positions = torch.zeros((len(rows), width), dtype=torch.long)
    spans: list[tuple[int, int]] = [(0, 0)] * len(sequences)
    for number, row in enumerate(rows):
        start = 0
        for index in row:
            end = start + len(sequences[index])
            ids[number, start:end] = torch.tensor(sequences[index])
            owners[number, start:end] = index
            positions[number, start:end] = torch.arange(end - start)
            spans[index] = (number * width + start, number * width + end)
            start = end
    device = backbone.device
    states: torch.Tensor = backbone.decoder(
        input_ids=ids.to(device),
        attention_mask=_masks(backbone, owners.to(device), positions.to(device)),
        position_ids=positions.to(device),
        use_cache=False,
    )[0]
    return PackedStates(states.flatten(0, 1), spans)


def _masks(backbone: Backbone, owners: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
    """Masks that are causal and stay inside one text; padding, which has one owner, sees padding."""
    index = torch.arange(owners.shape[1], device=owners.device)
    visible = (owners[:, :, None] == owners[:, None, :]) & (index[:, None] >= index[None, :])
    return attention_masks(backbone, visible, positions)
