"""Raw text to sentences of tokens: what the splitting promises, by example and by property."""

from __future__ import annotations

import importlib.util
import pickle
import string
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo import text as text_module
from elmo.errors import ElmoError, MissingExtraError
from elmo.text import Sentence, Tokenizer

pytest.importorskip("spacy", reason="raw text needs spaCy, which is not installed")

ENGLISH = Tokenizer("en")
ANY = Tokenizer("xx")


def words(text: str, tokenizer: Tokenizer = ENGLISH) -> str:
    return " ".join(token for sentence in tokenizer(text) for token in sentence.tokens)


def split(text: str, tokenizer: Tokenizer = ENGLISH) -> list[str]:
    return [text[sentence.spans[0][0] : sentence.spans[-1][1]] for sentence in tokenizer(text)]


def check(text: str, sentences: list[Sentence]) -> None:
    spans = [span for sentence in sentences for span in sentence.spans]
    tokens = [token for sentence in sentences for token in sentence.tokens]
    assert [text[start:end] for start, end in spans] == tokens
    assert all(start < end for start, end in spans)
    assert all(left[1] <= right[0] for left, right in pairwise(spans))
    assert all(sentence.tokens and len(sentence.tokens) == len(sentence.spans) for sentence in sentences)
    assert "".join(tokens) == "".join(text.split())
    assert not any(len(text[s.spans[0][0] : s.spans[-1][1]].splitlines()) > 1 for s in sentences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I don't, you can't, we won't", "I do n't , you ca n't , we wo n't"),
        ("It's his; they're hers, I've 'em", "It 's his ; they 're hers , I 've 'em"),
        ("DON'T! He’s late, isn’t he?", "DO N'T ! He ’s late , is n’t he ?"),
        ("She'd go, I'll stay, I'm here", "She 'd go , I 'll stay , I 'm here"),
        ("cannot gonna wanna gimme 'tis", "can not gon na wan na gim me 't is"),
        ("the dog's, the dogs', Let's", "the dog 's , the dogs ' , Let 's"),
        ("the 60's, the 1960s, '72", "the 60's , the 1960s , '72"),
    ],
)
def test_contractions_split_as_in_the_penn_treebank(text: str, expected: str) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It cost $3.50 (50% off).", "It cost $ 3.50 ( 50 % off ) ."),
        ("wait...what -- no--never", "wait ... what -- no -- never"),
        ("[a]{b}<c>, d;e:", "[ a ] { b } < c > , d ; e :"),
        ("What?! No!!! *** ====", "What ?! No !!! *** ===="),
        ("\"a\" 'b' “c” ‘d’ ``e'' «f»", "\" a \" ' b ' “ c ” ‘ d ’ `` e '' « f »"),
        (
            "Mr. Smith and Dr. No of the U.S. at 5 p.m. vs. J. Doe",
            "Mr. Smith and Dr. No of the U.S. at 5 p.m. vs. J. Doe",
        ),
        ("et al. (Fig. 3, cf. p. 5), e.g. this, i.e. that", "et al. ( Fig. 3 , cf. p. 5 ) , e.g. this , i.e. that"),
        ("1,000 men, 3.5 m, 7:30pm, 10k", "1,000 men , 3.5 m , 7:30 pm , 10 k"),
        ("#1 #tag @you AT&T :-) x@y.org", "# 1 #tag @you AT&T :-) x@y.org"),
    ],
)
def test_punctuation_splits_as_in_ewt(text: str, expected: str) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("well-known 26-year-old F-16", "well - known 26 - year - old F - 16"),
        ("non-profit e-mail, Anti-War re-read", "non-profit e-mail , Anti-War re-read"),
        ("Hizb-e-Islami", "Hizb - e - Islami"),
        ("555-1234 1-800-555-1234 2020-01-31 5-10", "555-1234 1-800-555-1234 2020-01-31 5 - 10"),
        ("and/or he/she 9/11", "and / or he / she 9/11"),
    ],
)
def test_words_split_at_hyphens_and_slashes_unless_bound(text: str, expected: str) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    "address",
    [
        "https://en.wikipedia.org/wiki/Foo_bar?x=1&y=a-b#z",
        "http://example.org/",
        "www.example.co.uk/a/b.html",
        "first.last@mail-host.example.org",
        "https://example.org/" + "path/" * 100 + "end",
    ],
)
def test_addresses_stay_whole(address: str) -> None:
    assert words(f"See ({address}), or {address}.") == f"See ( {address} ) , or {address} ."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Я не знаю. Почему? «Да!» — сказал он.", "Я не знаю . | Почему ? | « Да ! » — сказал он ."),
        ("Τι κάνεις\u037e Καλά.", "Τι κάνεις \u037e | Καλά ."),
        ("مرحبا، كيف حالك؟ أنا بخير.", "مرحبا ، كيف حالك ؟ | أنا بخير ."),
        ("मैं ठीक हूँ। आप कैसे हैं?", "मैं ठीक हूँ । | आप कैसे हैं ?"),
        ("اردو زبان۔ ٹھیک ہے؟", "اردو زبان ۔ | ٹھیک ہے ؟"),
        ("안녕하세요. 저는 학생입니다!", "안녕하세요 . | 저는 학생입니다 !"),
        ("我用Python写。你呢？好！", "我 用 Python 写 。 | 你 呢 ？ | 好 ！"),
        ("他说：“走吧。”价格3.5元……好——", "他 说 ： “ 走 吧 。 ” | 价 格 3.5 元 …… 好 ——"),
        ("「ラーメン」を食べた！いい。", "「 ラーメン 」 を 食 べ た ！ | い い 。"),
        ("สวัสดี เขาไป ๑๒", "ส วั ส ดี เขา ไป ๑๒"),
        ("ភាសាខ្មែរ។ ພາສາ မြန်မာ။", "ភា សា ខ្មែ រ ។ | ພາ ສາ မြ န် မာ ။"),
        ("👍🏽👩‍👩‍👧🇩🇪 ok😀!", "👍🏽 👩‍👩‍👧 🇩🇪 ok 😀 !"),
    ],
)
def test_many_scripts(text: str, expected: str) -> None:
    sentences = ANY(text)
    check(text, sentences)
    assert " | ".join(" ".join(sentence.tokens) for sentence in sentences) == expected


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "我用Python写。", "我 用 Python 写 。"),
        ("zh", "我用Python写。", "我 用 Python 写 。"),
        ("de", "Es geht z.B. so.", "Es geht z.B. so ."),
        ("it", "L'amico c'è.", "L' amico c' è ."),
    ],
)
def test_a_language_brings_its_rules(language: str, text: str, expected: str) -> None:
    assert words(text, Tokenizer(language)) == expected


def test_a_semicolon_asks_in_greek() -> None:
    assert split("Τι κάνεις; Καλά.", Tokenizer("el")) == ["Τι κάνεις;", "Καλά."]


@pytest.mark.parametrize(
    "sentences",
    [
        ["He left.", '"Why?" she asked.', '"I know!"', "He nodded."],
        ["He left.", "(She stayed.)", "[They did not.]", "Then “Stop!” he cried.", "“Go.”"],
        ["He said 'no.'", "So be it!!", "Really?!", "Yes."],
        ["Mr. Smith met J. R. Doe at 5 p.m. on Jan. 3.", "It rained."],
        ["The U.S. Senate met.", "She left the U.S.", "The end."],
        ["Well... maybe… not.", "Wait...", "What?"],
        ["1. First this.", "2. Then that.", "See No. 5 now.", "No.", "Stop."],
        ["i like it.", "it works.", "does it?", "yes"],
        ["Thanks! :)", "See you.", "Great! 😀", "Bye"],
        ["It is 3.5 at www.x.org, v. 2.", "Fine."],
    ],
)
def test_sentences_end_where_a_reader_ends_them(sentences: list[str]) -> None:
    assert split(" ".join(sentences)) == sentences


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n \n", "\u2028", "\x0b"])
def test_a_line_break_ends_a_sentence(line_break: str) -> None:
    assert split(f"no full\tstop{line_break}here") == ["no full\tstop", "here"]


@pytest.mark.parametrize("text", ["", " ", "\n\n", " \t\u3000\u00a0\u2028 "])
def test_white_space_holds_no_sentence(text: str) -> None:
    assert ENGLISH(text) == []


def test_spans_count_characters_of_the_whole_text() -> None:
    (first, second) = ENGLISH("  Hé  don't.\r\n 😀 ok")
    assert first == Sentence(["Hé", "do", "n't", "."], [(2, 4), (6, 8), (8, 11), (11, 12)])
    assert second == Sentence(["😀", "ok"], [(15, 16), (17, 19)])


@pytest.mark.parametrize("separator", ["\n", " "])
def test_a_text_may_be_longer_than_spacy_allows(separator: str) -> None:
    text = separator.join(["It doesn't matter."] * 60_000)
    sentences = ENGLISH(text)
    check(text, sentences)
    assert len(text) > 1_000_000
    assert {tuple(sentence.tokens) for sentence in sentences} == {("It", "does", "n't", "matter", ".")}


@pytest.mark.parametrize("tokenizer", [ENGLISH, ANY])
@pytest.mark.parametrize(
    "unit", ["x", "(", "a.", "a-", "'s", "_a", "a://", ":)", ". ", "? a ", "é", "ก", "我", "😀\u200d"]
)
def test_a_word_of_100_000_characters_takes_linear_time(unit: str, tokenizer: Tokenizer) -> None:
    text = unit * (100_000 // len(unit))
    start = time.perf_counter()
    check(text, tokenizer(text))
    assert time.perf_counter() - start < 10  # takes under a second; spaCy's rules alone need minutes for the brackets


def test_a_long_word_stays_one_token() -> None:
    assert words("x" * 100_000 + " y") == "x" * 100_000 + " y"


def test_memory_does_not_grow_with_the_words_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_MAX_CACHE", 100)
    tokenizer = Tokenizer("en")
    strings = len(tokenizer._vocab.strings)
    for number in range(2_000):
        tokenizer(f"word{number} is no{number}'s.")
    assert len(tokenizer._vocab.strings) == strings
    assert len(tokenizer._cache) <= 100


def test_one_tokenizer_serves_many_threads() -> None:
    tokenizer = Tokenizer("en")
    texts = [f"It's word{number}, isn't it? Yes-{number % 7}." for number in range(500)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(tokenizer, texts))
    assert results == [ENGLISH(text) for text in texts]


def test_a_tokenizer_can_be_sent_to_another_process() -> None:
    assert words("can't", pickle.loads(pickle.dumps(ENGLISH))) == "ca n't"


@pytest.mark.parametrize("language", ["klingon", "", "EN", "eng", "ja", "ko", "th", "vi"])
def test_an_unknown_language_is_named_with_those_allowed(language: str) -> None:
    with pytest.raises(ElmoError, match=f"'{language}'.* en, .* ru, .* zh"):
        Tokenizer(language)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ElmoError, match=r"not valid Unicode.*\\ud800"):
        ENGLISH("ok \ud800")


def test_without_spacy_the_module_imports_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    spec = importlib.util.find_spec("elmo.text")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    with pytest.raises(MissingExtraError, match=r"Tokenising raw text .*pip install 'elmo\[text\]'"):
        fresh.Tokenizer()


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LIKELY_TEXT = st.lists(
    st.sampled_from(["don't", "U.S.", "Mr.", "e-mail", "well-known", "No", "his", "…", "。", "！", "我", "が", "ッ"])
    | st.sampled_from(["é", "e\u0301", "हिं", "เ", "ก็", "👍🏽", "\u200d", "\ufe0f", "\u3000", "\n", " ", "http://x.y/"])
    | st.sampled_from(list(string.punctuation + "0123456789aAbBsStTnN")),
    max_size=60,
).map("".join)


@pytest.mark.parametrize("tokenizer", [ENGLISH, ANY])
@given(text=ANY_TEXT | LIKELY_TEXT)
def test_tokens_cover_any_text_in_order(tokenizer: Tokenizer, text: str) -> None:
    check(text, tokenizer(text))


@pytest.mark.parametrize("tokenizer", [ENGLISH, ANY])
@given(text=ANY_TEXT | LIKELY_TEXT)
def test_the_same_text_always_splits_the_same(tokenizer: Tokenizer, text: str) -> None:
    warm = tokenizer(text)
    tokenizer._cache.clear()
    assert tokenizer(text) == warm


@given(lines=st.lists(LIKELY_TEXT.map(lambda text: "".join(text.split()))))
def test_lines_split_alone_as_together(lines: list[str]) -> None:
    together = [sentence.tokens for sentence in ENGLISH("\n".join(lines))]
    assert together == [sentence.tokens for line in lines for sentence in ENGLISH(line)]
