"""Whole sentences choose on SST-2: none of their phrases is learned from, and common words stay."""

from benchmarks.data.whole_sentences import COMMON_WORDS, parted, whole

SENTENCE = "a warm and funny film about two old friends"
OTHER = "so dull that even its own makers fell asleep"


def rows(*texts):
    return [{"text": text, "label": "positive"} for text in texts]


def test_a_text_inside_of_another_is_no_sentence():
    texts = ["warm and funny", SENTENCE, "arm and funny", OTHER, "funny film about two old friends ", "dull"]
    assert whole(texts) == [OTHER, SENTENCE, "arm and funny"]


def test_phrases_of_a_sentence_that_chooses_are_not_learned_from():
    phrases = rows(
        SENTENCE, "warm and funny film", "two old friends ", "funny film", OTHER, "even its own makers", "dull"
    )
    train, select = parted(phrases, count=1)
    chosen, left = (SENTENCE, OTHER) if select[0]["text"] == SENTENCE else (OTHER, SENTENCE)
    assert [row["text"] for row in select] == [chosen]
    learned = [row["text"] for row in train]
    assert left in learned
    assert {"funny film", "dull"} <= set(learned), f"up to {COMMON_WORDS} words belong to no one sentence"
    assert not any(len(text.split()) > COMMON_WORDS and text.strip() in chosen for text in learned)
    assert len(learned) + len(select) < len(phrases)
