"""Whether two encoders read the same texts alike, so that what a teacher says of tokens fits those of a student."""

from __future__ import annotations

from dataclasses import replace

from eval.encoding import TextEncoder
from eval.errors import UserError, quantity
from teachers.data.encoded_dataset import EncodedDataset


def reads_alike(own: TextEncoder, other: TextEncoder) -> bool:
    """Whether two encoders turn every example into the same inputs."""
    settings = replace(own.settings, thresholds=other.settings.thresholds)
    return settings == other.settings and own.tokenizer.to_str() == other.tokenizer.to_str()


def cuts_alike(own: TextEncoder, other: TextEncoder) -> bool:
    """Whether two encoders turn every example into the same tokens, though one network also takes token types."""
    same = ("inputs", "pad_type_id", "thresholds")
    settings = replace(own.settings, **{name: getattr(other.settings, name) for name in same})
    return settings == other.settings and own.tokenizer.to_str() == other.tokenizer.to_str()


def same_pieces(own: EncodedDataset, other: EncodedDataset) -> bool:
    """Whether two encoders cut every text of the same examples into the same pieces, with whatever ids and branches."""
    lengths = [[feature.of_text for feature in rows.features] for rows in (own, other)]
    if lengths[0] != lengths[1] or own.encoder.settings.pad_side != other.encoder.settings.pad_side:
        return False
    names, others = (
        {number: piece for piece, number in rows.encoder.tokenizer.get_vocab().items()} for rows in (own, other)
    )
    return all(
        [names.get(i) for i in one.ids[:length]] == [others.get(i) for i in two.ids[:length]]
        for one, two, length in zip(own.features, other.features, lengths[0], strict=True)
    )


def numbers_of_words(own: TextEncoder, other: TextEncoder) -> list[int]:
    """Return the ids that the tokens of the other encoder have in one's own, in the other's order.

    Raises:
        UserError: Some are not there.
    """
    known, order = own.tokenizer.get_vocab(), sorted(other.tokenizer.get_vocab().items(), key=lambda item: item[1])
    if unknown := [token for token, _ in order if token not in known]:
        raise UserError(
            f"the student predicts {quantity(len(unknown), 'token')} that the teacher does not know, such as "
            f"{', '.join(map(repr, unknown[:3]))}; give the student tokens of the teacher's alone"
        )
    return [known[token] for token, _ in order]
