"""Semantic roles: what files mean and how they can be wrong, how answers are counted, what the model learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elmo
from conftest import small_options, write_model
from elmo.errors import ElmoError
from elmo.tasks.encoder import Place
from elmo.tasks.metrics import arguments_of
from elmo.tasks.role_reader import Proposition, read_propositions
from elmo.tasks.roles import AlternatingLSTM, HighwayLSTM, RoleSettings, SemanticRoles
from elmo.tasks.vectors import FrozenLayers
from toy_tasks import PLACES, answer, learn, loss_of, toy_model

TASK = SemanticRoles()
SMALL = RoleSettings(hidden=16, layers=4, predicate_dim=4, dropout=0)


def proposition(text: str) -> Proposition:
    """Of `token/tag` pairs; the predicate is the token with `B-V`."""
    pairs = [pair.rsplit("/", 1) for pair in text.split()]
    tags = tuple(tag for _, tag in pairs)
    return Proposition(tuple(token for token, _ in pairs), tags.index("B-V"), tags)


TOYS = [
    proposition(text)
    for text in (
        "the/B-ARG0 cat/I-ARG0 chased/B-V a/B-ARG1 dog/I-ARG1",
        "a/B-ARG0 dog/I-ARG0 saw/B-V the/B-ARG1 old/I-ARG1 cat/I-ARG1 ./O",
        "dogs/B-ARG0 sleep/B-V",
        "Go/B-V",
        "yesterday/B-ARGM-TMP cats/B-ARG0 slept/B-V",
        "the/B-ARG1 cat/I-ARG1 was/O chased/B-V",
        "the/B-ARG1 dog/I-ARG1 was/O seen/B-V yesterday/B-ARGM-TMP",
        "cats/B-ARG0 want/B-V to/B-ARG1 sleep/I-ARG1",
        "cats/B-ARG0 want/O to/O sleep/B-V",
        "cats/B-ARG1 ,/O dogs/B-ARG0 said/B-V ,/O sleep/B-C-ARG1",
    )
]


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> FrozenLayers:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return FrozenLayers(elmo.load(folder).embedder(layers="all"), [one.tokens for one in TOYS])


def write(folder: Path, text: str, name: str = "a.jsonl") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def record(**change: Any) -> str:
    return json.dumps({"words": ["Cats", "sleep"], "predicates": [{"index": 1, "tags": ["B-ARG0", "B-V"]}]} | change)


def predicate(**change: Any) -> str:
    return record(predicates=[{"index": 1, "tags": ["B-ARG0", "B-V"]}, {"index": 1, "tags": ["O", "B-V"]} | change])


class TestJson:
    def test_each_predicate_of_a_sentence_is_an_example(self, tmp_path: Path) -> None:
        path = write(tmp_path, predicate(lemma="sleep") + "\n\n" + record(predicates=[], id="x") + "\n")
        assert read_propositions(path) == [
            Proposition(("Cats", "sleep"), 1, ("B-ARG0", "B-V")),
            Proposition(("Cats", "sleep"), 1, ("O", "B-V")),
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("nothing", "line 1: found no JSON"),
            ("[]", "expected an object a line"),
            (record(words=[]), r"found words \[\], expected a list of words"),
            (record(words=["a", ""]), "expected a list of words"),
            (record(words=["a", "\t"]), "expected a list of words"),
            (record(words=["a", "b\nc"]), r"found a line break in the word 'b\\nc', expected none"),
            (record(words=["a\r", "b"]), r"found a line break in the word 'a\\r', expected none"),
            (record(words=["a", "b\ud800"]), r"found half a surrogate pair \('\\ud800'\), expected valid Unicode"),
            (record(words="a b"), "found words 'a b', expected a list"),
            (record(predicates=None), "found predicates None, expected a list"),
            (record(predicates=[3]), r"found predicates\[0\] 3, expected an object with index and tags"),
            (predicate(index=2), r"found predicates\[1\].index 2, expected a number from 0 to 1"),
            (predicate(index=True), r"predicates\[1\].index True"),
            (predicate(index=None), r"predicates\[1\].index None"),
            (predicate(tags=["O"]), r"predicates\[1\].tags with 1 tags, expected one for each of the 2 words"),
            (predicate(tags="OO"), r"predicates\[1\].tags with 'OO'"),
            (predicate(tags=["O", "V"]), r"the tag 'V' in predicates\[1\].tags, expected O, B-ROLE or I-ROLE"),
            (predicate(tags=["O", 7]), "the tag 7 in"),
            (predicate(tags=["O", "I-ARG0"]), r"I-ARG0 behind O in predicates\[1\].tags, expected B-ARG0 or I-ARG0"),
            (predicate(tags=["B-ARG1", "I-ARG0"]), "I-ARG0 behind B-ARG1"),
        ],
    )
    def test_a_bad_line_is_named_with_what_was_expected(self, tmp_path: Path, text: str, message: str) -> None:
        path = write(tmp_path, text)
        with pytest.raises(ElmoError, match=message) as error:
            read_propositions(path)
        assert f"{path}, line 1" in str(error.value)

    def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(self, tmp_path: Path) -> None:
        for name, text in (("a.jsonl", predicate() + "\n" + record() + "\n"), ("a.conll", conll(CATS) + conll(CATS))):
            expected = read_propositions(write(tmp_path, text, name))
            (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", " \t\r\n").encode())
            assert read_propositions(str(tmp_path / name)) == expected

    def test_a_file_without_predicates_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="has no predicate in it"):
            read_propositions(write(tmp_path, record(predicates=[])))

    @given(
        words=st.lists(st.text(max_size=3), max_size=3) | st.none(),
        index=st.integers(-2, 3) | st.text(max_size=1) | st.none(),
        tags=st.lists(st.sampled_from(["O", "B-A", "I-A", "I-B", "B-", "", None, 1]), max_size=3) | st.integers(),
    )
    def test_any_other_object_is_read_or_refused_with_its_line(
        self, tmp_path_factory: pytest.TempPathFactory, words: Any, index: Any, tags: Any
    ) -> None:
        folder = tmp_path_factory.getbasetemp()
        path = write(folder, json.dumps({"words": words, "predicates": [{"index": index, "tags": tags}]}))
        try:
            (found,) = read_propositions(path)
        except ElmoError as error:
            assert f"{path}, line 1" in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert (list(found.tokens), found.predicate, list(found.tags)) == (words, index, tags)


def conll(rows: list[tuple[str, list[str]]]) -> str:
    """Rows of word and roles as CoNLL 2012 has them."""
    lines = [
        " ".join(["bc/x/00", "0", str(number), word, "NN", "*", "-", "-", "-", "-", "*", *roles, "-"])
        for number, (word, roles) in enumerate(rows)
    ]
    return "\n".join(lines) + "\n\n"


CATS = [("Cats", ["(ARG0*", "*"]), ("-LRB-", ["*)", "*"]), ("want", ["(V*)", "*"]), ("sleep", ["(ARG1*)", "(V*)"])]


class TestConll2012:
    def test_each_column_of_roles_is_an_example(self, tmp_path: Path) -> None:
        text = "#begin document (bc/x/00); part 000\n" + conll(CATS) + conll([("Yes", [])]) + "#end document\n"
        tokens = ("Cats", "(", "want", "sleep")
        assert read_propositions(write(tmp_path, text, "a.gold_conll")) == [
            Proposition(tokens, 2, ("B-ARG0", "I-ARG0", "B-V", "B-ARG1")),
            Proposition(tokens, 3, ("O", "O", "O", "B-V")),
        ]

    @pytest.mark.parametrize(
        ("roles", "message"),
        [
            (["(ARG0*", "(V*)"], "line 2: found V within ARG0 in column 12, expected roles one after the other"),
            (["*)", "(V*)"], "line 1: found the end of a role in column 12, expected its beginning"),
            (["(V*)", "(ARG0*"], "line 2: found the sentence's end within ARG0 in column 12"),
            (["(V*)", "ARG0"], r"line 2: found 'ARG0' in column 12, expected \(ROLE\*"),
            (["(V*)", "(A(B*))"], r"line 2: found '\(A\(B\*\)\)' in column 12"),
            (["(ARG0*)", "*"], r"line 1: found no predicate in column 12 of the sentence, expected \(V\*\)"),
        ],
    )
    def test_a_bad_column_is_named_with_its_line(self, tmp_path: Path, roles: list[str], message: str) -> None:
        path = write(tmp_path, conll([("a", roles[:1]), ("b", roles[1:])]), "a.conll")
        with pytest.raises(ElmoError, match=message) as error:
            read_propositions(path)
        assert path in str(error.value)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a 0 0 word\n", "line 1: found 4 columns, expected 12"),
            (conll([("a", ["(V*)"]), ("b", [])]), "line 2: found 12 columns, expected 13"),
            ("\n#begin document\n", "has no predicate in it"),
        ],
    )
    def test_a_wrong_number_of_columns_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            read_propositions(write(tmp_path, text, "a.conll"))

    @given(st.lists(st.tuples(st.sampled_from(["", "A", "V"]), st.integers(1, 3))))
    def test_brackets_mean_the_same_as_bio_tags(
        self, tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, int]]
    ) -> None:
        tags, cells = [], []
        for role, length in [*drawn, ("V", 1)]:
            tags += [f"B-{role}", *[f"I-{role}"] * (length - 1)] if role else ["O"] * length
            inside = ["*"] * length
            if role:
                inside[0] = f"({role}*"
                inside[-1] += ")"
            cells += inside
        path = write(tmp_path_factory.getbasetemp(), conll([("w", [cell]) for cell in cells]), "drawn.conll")
        assert list(read_propositions(path)[0].tags) == tags


class TestScores:
    def test_the_predicate_is_no_argument_and_pieces_of_one_are_one(self) -> None:
        tags = ["B-ARG1", "I-ARG1", "B-V", "B-C-V", "O", "B-C-ARG1", "B-ARG2", "B-ARG1", "B-C-ARG1"]
        assert arguments_of(tags) == [("ARG1", ((0, 2), (5, 6))), ("ARG2", ((6, 7),)), ("ARG1", ((7, 8), (8, 9)))]

    def test_a_piece_that_goes_on_with_nothing_is_an_argument(self) -> None:
        assert arguments_of(["B-C-ARG0", "B-V", "B-C-V", "B-R-ARG0"]) == [("ARG0", ((0, 1),)), ("R-ARG0", ((3, 4),))]

    def test_arguments_count_if_role_and_all_ends_are_right(self) -> None:
        gold = [
            Proposition(("x",) * 4, 0, ("B-V", "B-ARG1", "I-ARG1", "B-ARG2")),
            Proposition(("x",) * 4, 1, ("B-ARG1", "B-V", "O", "B-C-ARG1")),
        ]
        given = [
            ("B-V", "B-ARG1", "I-ARG1", "B-ARG3"),  # one right, one with another role
            ("B-ARG1", "B-V", "O", "O"),  # half an argument is none
        ]
        scores = TASK.scores(gold, given)
        assert scores == pytest.approx({"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3})

    def test_what_is_told_is_not_counted(self) -> None:
        assert TASK.scores([proposition("Go/B-V")], [("B-V",)]) == {"precision": 0, "recall": 0, "f1": 0}


class TestLayers:
    def test_every_other_layer_reads_backwards_whatever_the_padding(self) -> None:
        torch.manual_seed(0)
        for layers in (1, 2, 3):
            stack = AlternatingLSTM(5, 3, layers=layers, dropout=0)
            x_BTI = torch.randn(3, 6, 5)
            lengths = [6, 1, 4]
            mask_BT = torch.arange(6) < torch.tensor(lengths)[:, None]
            found = stack(x_BTI, mask_BT)
            for row, length in enumerate(lengths):
                alone = x_BTI[row : row + 1, :length]
                for number, layer in enumerate(stack.layers):
                    size = torch.tensor([length])
                    alone = layer(alone.flip(1), size).flip(1) if number % 2 else layer(alone, size)
                torch.testing.assert_close(found[row, :length], alone[0])

    def test_a_closed_gate_leaves_only_the_way_around(self) -> None:
        layer = HighwayLSTM(5, 5)
        torch.nn.init.eye_(layer.around.weight)
        torch.nn.init.constant_(layer.gate.bias, -1e4)
        x_BTI = torch.randn(2, 3, 5)
        torch.testing.assert_close(layer(x_BTI, torch.tensor([3, 3])), x_BTI)


class TestModel:
    @pytest.mark.parametrize("place", PLACES)
    def test_it_learns_a_few_sentences_to_the_end(self, frozen: FrozenLayers, place: Place) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen, place)
        losses = learn(model, TOYS, frozen, steps=120)
        assert losses[-1] < losses[0] / 20
        answers = answer(model, TOYS, frozen)
        assert answers == [one.tags for one in TOYS]
        assert TASK.scores(TOYS, answers)["f1"] == 1

    @pytest.mark.parametrize("place", PLACES)
    def test_an_answer_does_not_depend_on_the_other_rows(self, frozen: FrozenLayers, place: Place) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen, place)
        alone = [answer(model, [one], frozen)[0] for one in TOYS]
        assert answer(model, TOYS, frozen) == alone
        assert len(set(alone)) > 1
        by_token = sum(loss_of(model, [one], frozen) * len(one.tokens) for one in TOYS)
        assert loss_of(model, TOYS, frozen) == pytest.approx(by_token / sum(len(one.tokens) for one in TOYS), rel=1e-5)

    def test_tags_always_make_whole_spans(self, frozen: FrozenLayers) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen)
        torch.nn.init.normal_(model.get_parameter("score.weight"), std=10)
        for tags in answer(model, TOYS, frozen):
            pairs = zip(("O", *tags), tags, strict=False)
            assert all(before[2:] == tag[2:] for before, tag in pairs if tag.startswith("I-"))

    def test_the_predicate_decides(self, frozen: FrozenLayers) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen)
        tokens = TOYS[7].tokens
        one, other = (loss_of(model, [Proposition(tokens, place, TOYS[7].tags)], frozen) for place in (1, 3))
        assert one != pytest.approx(other)

    def test_a_tag_that_training_had_not_counts_for_nothing_in_the_loss(self, frozen: FrozenLayers) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen)
        known = Proposition(("dogs", "sleep"), 1, ("", "B-V"))
        new = Proposition(("dogs", "sleep"), 1, ("B-NEW", "B-V"))
        assert loss_of(model, [new], frozen) == loss_of(model, [known], frozen)

    def test_it_answers_new_text(self, frozen: FrozenLayers) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen)
        examples = TASK.parse(["The unheard [sleeps]", "[Go]"])
        assert [len(tags) for tags in answer(model, examples, frozen)] == [3, 1]

    @pytest.mark.parametrize("change", [{"hidden": 0}, {"layers": 0}, {"predicate_dim": 0}, {"dropout": 1.0}])
    def test_sizes_that_no_model_has_are_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(ElmoError, match=f"model.{next(iter(change))}"):
            RoleSettings(**change)


class TestText:
    def test_each_predicate_in_brackets_is_asked_for(self) -> None:
        assert TASK.parse(["Cats [want] to [sleep] [", " "]) == [
            Proposition(("Cats", "want", "to", "sleep", "["), 1),
            Proposition(("Cats", "want", "to", "sleep", "["), 3),
        ]

    def test_a_line_without_brackets_is_refused_with_what_to_do(self) -> None:
        with pytest.raises(ElmoError, match=r"^line 3: no predicate in 'Cats sleep': put it in brackets"):
            TASK.parse(["Cats [sleep]", "", "Cats sleep"])

    def test_answers_are_shown_in_brackets_and_given_as_tags(self) -> None:
        one = TOYS[1]
        assert TASK.show(one, one.tags) == "[ARG0 a dog] [V saw] [ARG1 the old cat] ."
        assert TASK.record(one, one.tags) == {"tokens": list(one.tokens), "predicate": 2, "tags": list(one.tags)}
