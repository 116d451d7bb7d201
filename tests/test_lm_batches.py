from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import ElmoError
from elmo.lm import batches
from elmo.lm.batches import Blocks, TrainStream, Windows, validation_windows
from elmo.lm.softmax import PADDING
from lm_corpus import MemoryCorpus, Sentences, sentences, small_corpus


def stream_of(corpus: MemoryCorpus, windows: int, **settings: Any) -> Any:
    """Some windows of a stream put end to end: types `(4, B, windows * T)`."""
    stream = TrainStream(corpus, **settings)
    return np.concatenate([next(stream) for _ in range(windows)], axis=2)


def words(corpus: MemoryCorpus, types: Any) -> list[str]:
    return [corpus.types[int(one)] for one in types]


def sentences_in(corpus: MemoryCorpus, streams: Any) -> list[tuple[str, ...]]:
    """Whole sentences of one row's forward stream, checked against its other three streams."""
    inputs, back_inputs, targets, back_targets = (words(corpus, stream) for stream in streams)
    starts = [place for place, word in enumerate(inputs) if word == "<S>"]
    found = []
    for start, end in pairwise(starts):
        sentence = inputs[start + 1 : end]
        assert targets[start:end] == [*sentence, "</S>"]
        assert back_inputs[start:end] == ["</S>", *reversed(sentence)]
        assert back_targets[start:end] == [*reversed(sentence), "<S>"]
        found.append(tuple(sentence))
    return found


def unique_sentences(number: int) -> Sentences:
    """Sentences of different lengths, no two the same; some have no word at all but their number."""
    return [[f"w{n}", *["x"] * (n % 7)] for n in range(number)]


class TestTrainStream:
    def test_reads_sentences_whole_and_in_both_directions(self) -> None:
        corpus = MemoryCorpus([unique_sentences(40)], sentences(3))
        streams = stream_of(corpus, 30, rows=2, first=0, last=2, steps=5, seed=0)
        for row in range(2):
            assert streams[0, row, 0] == batches.BOS_TYPE
            assert streams[1, row, 0] == batches.EOS_TYPE
            assert len(sentences_in(corpus, streams[:, row])) > 10

    def test_an_epoch_shows_each_sentence_once_whatever_the_rows(self) -> None:
        corpus = MemoryCorpus([unique_sentences(37), [["other", str(n)] for n in range(11)]], sentences(3))
        for rows in (1, 3, 8):
            seen: Counter[tuple[str, ...]] = Counter()
            for row in range(rows):
                streams = stream_of(corpus, 200, rows=rows, first=row, last=row + 1, steps=4, seed=3)
                share: list[tuple[str, ...]] = []
                for sentence in sentences_in(corpus, streams[:, 0]):
                    if sentence in share:  # the row's next epoch
                        break
                    share.append(sentence)
                seen.update(share)
            whole = Counter(map(tuple, unique_sentences(37) + [["other", str(n)] for n in range(11)]))
            # A row's next epoch may begin with sentences that another row had in this one.
            assert set(whole) == set(seen), rows
            if rows == 1:
                assert seen == whole

    def test_rows_divide_an_epoch_without_overlap(self) -> None:
        corpus = MemoryCorpus([unique_sentences(640)], sentences(3))
        seen: Counter[tuple[str, ...]] = Counter()
        windows = TrainStream(corpus, rows=4, first=0, last=4, steps=5, seed=0).windows_an_epoch
        for row in range(4):
            streams = stream_of(corpus, int(windows * 0.8), rows=4, first=row, last=row + 1, steps=5, seed=0)
            seen.update(sentences_in(corpus, streams[:, 0]))
        assert max(seen.values()) == 1
        assert len(seen) > 0.7 * 640

    @settings(max_examples=25)
    @given(st.integers(0, 60), st.integers(1, 9), st.sampled_from([(1, 1), (4, 2), (6, 3)]), st.integers(0, 5))
    def test_a_position_is_all_that_is_needed_to_go_on(
        self, position: int, steps: int, shape: tuple[int, int], seed: int
    ) -> None:
        rows, ranks = shape
        corpus = MemoryCorpus([unique_sentences(23), unique_sentences(9)], sentences(3))
        common = {"rows": rows, "steps": steps, "seed": seed}
        whole = stream_of(corpus, position + 3, first=0, last=rows, **common)
        for rank in range(ranks):
            mine = slice(rank * rows // ranks, (rank + 1) * rows // ranks)
            later = stream_of(corpus, 3, first=mine.start, last=mine.stop, position=position, **common)
            assert np.array_equal(later, whole[:, mine, position * steps :])

    def test_order_is_new_every_epoch_and_fixed_by_the_seed(self) -> None:
        corpus = MemoryCorpus([unique_sentences(50)], sentences(3))
        common = {"rows": 1, "first": 0, "last": 1, "steps": 10}
        first = sentences_in(corpus, stream_of(corpus, 60, seed=1, **common)[:, 0])
        again = sentences_in(corpus, stream_of(corpus, 60, seed=1, **common)[:, 0])
        other = sentences_in(corpus, stream_of(corpus, 60, seed=2, **common)[:, 0])
        assert first == again
        assert first[:50] != other[:50]
        assert first[:50] != first[50:100]
        assert first[:50] != [tuple(s) for s in unique_sentences(50)]

    def test_fewer_sentences_than_rows_are_refused(self) -> None:
        corpus = MemoryCorpus([unique_sentences(5)], sentences(3))
        with pytest.raises(ElmoError, match=r"5 sentences, the batch 6 rows \(data\.rows\)"):
            TrainStream(corpus, rows=6, first=0, last=6, steps=4, seed=0)

    def test_a_word_id_out_of_range_is_refused(self) -> None:
        corpus = small_corpus()
        corpus.split("train").shards[1].tokens[7] = 10_000
        blocks = Blocks(corpus, "train", 500)
        assert len(blocks) == 2
        blocks.positions(0, None)
        with pytest.raises(ElmoError, match=r"shard 1 of the train split has the word id 10,000"):
            blocks.positions(1, None)


class TestWindows:
    def test_gathers_each_distinct_word_once(self) -> None:
        corpus = small_corpus()
        streams = next(TrainStream(corpus, rows=4, first=0, last=4, steps=6, seed=0))
        window = Windows(corpus, characters=True, device=torch.device("cpu"))(streams)
        assert len(torch.unique(window.words, dim=0)) == len(window.words)
        assert torch.equal(window.words[window.inputs], torch.from_numpy(corpus.characters()[streams[:2]]).long())
        assert window.targets.tolist() == corpus.targets()[streams[2:]].tolist()

    def test_a_word_outside_the_vocabulary_is_unknown_as_a_target_only(self) -> None:
        corpus = MemoryCorpus([[["rare", "the"], ["the", "the"]]], [["the"]], n_words=1)
        window = Windows(corpus, characters=True, device=torch.device("cpu"))(
            next(TrainStream(corpus, rows=1, first=0, last=1, steps=12, seed=0))
        )
        unknown = corpus.vocab.ids(["rare"])[0]
        assert corpus.vocab.words[unknown] == "<UNK>"
        assert unknown in window.targets
        rare = torch.from_numpy(corpus.characters()[corpus.types.index("rare")]).long()
        assert (window.words == rare).all(dim=1).any()

    def test_word_ids_of_a_model_that_reads_words_are_raised_by_one(self) -> None:
        corpus = small_corpus()
        streams = next(TrainStream(corpus, rows=2, first=0, last=2, steps=6, seed=0))
        window = Windows(corpus, characters=False, device=torch.device("cpu"))(streams)
        assert window.words[window.inputs].tolist() == (corpus.targets()[streams[:2]] + 1).tolist()

    def test_a_target_out_of_range_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        corpus = small_corpus()
        monkeypatch.setattr(corpus, "targets", lambda: np.full(corpus.n_types, 5000))
        with pytest.raises(ElmoError, match="targets up to 5,000"):
            Windows(corpus, characters=True, device=torch.device("cpu"))


class TestValidation:
    @settings(max_examples=20)
    @given(st.integers(1, 7), st.integers(1, 9), st.integers(1, 30))
    def test_shows_each_position_once_in_order(self, rows: int, steps: int, number: int) -> None:
        corpus = MemoryCorpus([sentences(9)], unique_sentences(number))
        per_row: list[list[str]] = [[] for _ in range(rows)]
        for streams, counted in validation_windows(corpus, rows=rows, first=0, last=rows, steps=steps):
            for row in range(rows):
                per_row[row] += words(corpus, streams[2, row][counted[row]])
        assert [word for words_of_row in per_row for word in words_of_row] == [
            word for sentence in unique_sentences(number) for word in [*sentence, "</S>"]
        ]

    def test_ranks_share_the_rows_and_get_as_many_windows(self) -> None:
        corpus = small_corpus()
        whole = list(validation_windows(corpus, rows=4, first=0, last=4, steps=5))
        parts = [list(validation_windows(corpus, rows=4, first=f, last=f + 2, steps=5)) for f in (0, 2)]
        assert len(whole) == len(parts[0]) == len(parts[1])
        for (streams, counted), *mine in zip(whole, *parts, strict=True):
            assert np.array_equal(streams, np.concatenate([part[0] for part in mine], axis=1))
            assert np.array_equal(counted, np.concatenate([part[1] for part in mine]))

    def test_what_does_not_count_is_padding(self) -> None:
        corpus = small_corpus()
        *_, (streams, counted) = validation_windows(corpus, rows=3, first=0, last=3, steps=50)
        window = Windows(corpus, characters=True, device=torch.device("cpu"))(streams, counted)
        assert not counted.all()
        assert ((window.targets[0] == PADDING).numpy() == ~counted).all()

    def test_a_limit_is_kept(self) -> None:
        assert len(list(validation_windows(small_corpus(), rows=2, first=0, last=2, steps=3, most=4))) == 4

    def test_no_held_out_text_is_an_error(self) -> None:
        with pytest.raises(ElmoError, match="no held-out sentences"):
            next(validation_windows(MemoryCorpus([sentences(9)], []), rows=2, first=0, last=2, steps=3))
