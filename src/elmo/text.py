"""Raw text to sentences of word tokens, with their places in the text.

The words come from spaCy's rule tokenizer, asked for one whitespace-delimited chunk at a time; the sentences from a
small splitter of our own. Nothing here is learnt from data.

English follows the Penn Treebank for contractions and punctuation (`do n't`, `can not`, `$ 3.50`, `50 %`, `...`, `--`)
and Universal Dependencies EWT where the two differ. Above all, words are split at hyphens (`well - known`, as in EWT
and OntoNotes; the first Penn Treebank kept them whole), except after a bound prefix (`non-profit`, `e-mail`) and in
telephone numbers and dates. Quotes stay as they are in the text. Other languages have spaCy's own rules.

No dictionary is used for scripts written without spaces between words. There a token is one Han character, one
hiragana, a run of katakana, or one cluster of Thai, Lao, Burmese or Khmer (a letter with its vowels and marks),
whatever the language. So is an emoji with its modifiers.
"""

from __future__ import annotations

import pkgutil
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elmo.errors import ElmoError, MissingExtraError

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

_WIDE_FINAL = "。｡！？।॥။។៕።፧؟۔։\u037e"  # they end a sentence without a space after them
_FINAL = frozenset(".!?…‼⁇⁈⁉" + _WIDE_FINAL)
_CLOSING = frozenset(")]}）］｝」』】》〉〕｣”»›")
_CLOSING_IF_ATTACHED = frozenset("\"'’")
_DASHES = frozenset({"-", "--", "–", "—"})  # after them the speaker is named, in Russian and others
# They open a sentence far more often than a name: this tells "left the U.S. The" from "the U.S. Senate".
_OPENER = re.compile(
    "An?|And|As|At|But|For|He|Her|His|How|However|I|If|In|It|Its|My|On|Our|She|So|That|The|Their|Then|There|These|They|"
    "This|Those|We|What|When|Where|While|Who|Why|Your?"
)

_HAN = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_HAN_MARKS = r"\u3099\u309a\u30fc\ufe00-\ufe0f\U000e0100-\U000e01ef"
_KATAKANA = r"\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_THAI = r"\u0e01-\u0e5b\u0e81-\u0edf\u1000-\u109f\u1780-\u17ff"
_THAI_MARKS = (
    r"\u0e30-\u0e3a\u0e45\u0e47-\u0e4e\u0eb0-\u0ebd\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u106d"
    r"\u1071-\u1074\u1082-\u108d\u17b4-\u17d3\u17dd"
)
_EMOJI = r"\u2600-\u27bf\u2b50\u2b55\U0001f000-\U0001faff"
_EMOJI_MARKS = r"\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
_ATOM = (
    rf"—{{2,}}|…{{2,}}|[{_WIDE_FINAL}]+|[{_HAN}][{_HAN_MARKS}]*|[{_KATAKANA}][{_KATAKANA}\u3099\u309a]*"
    r"|[\u0e50-\u0e59]+|[\u0ed0-\u0ed9]+|[\u1040-\u1049]+|[\u17e0-\u17e9]+"
    rf"|[\u0e40-\u0e44\u0ec0-\u0ec4]*[{_THAI}](?:[\u1039\u17d2][{_THAI}]|[{_THAI_MARKS}])*"
    rf"|[\U0001f1e6-\U0001f1ff]{{2}}|[{_EMOJI}][{_EMOJI_MARKS}]*(?:\u200d[{_EMOJI}][{_EMOJI_MARKS}]*)*"
)
_EMOTICON = re.compile(rf"[:;=][-^o']?[()DPp/|*\]]+|[{_EMOJI}].*", re.DOTALL)
_IS_ATOM = re.compile(_ATOM)
_CHUNK = re.compile(rf"{_ATOM}|[^\s{_WIDE_FINAL}{_HAN}{_KATAKANA}{_THAI}{_EMOJI}]+")

# spaCy strips affixes one by one, in quadratic time: a longer chunk is split by one linear expression instead.
_MAX_CHUNK = 120
_LONG_CHUNK = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://\S*[\w/]|(?:[^\x00-\x7f]|[A-Za-z0-9])+|(.)\1*", re.DOTALL)
_MAX_CACHED_CHUNK = 40
_MAX_CACHE = 1 << 18  # some 50 MB; a corpus has a long tail of words that come again

_NEED_SEGMENTER = frozenset({"ja", "ko", "th", "vi"})  # spaCy has no rules for them, only other packages
_BOUND_PREFIXES = (
    "anti arch co counter cross e ex extra inter intra macro mega micro mid mini mis multi neo non over post pre pro "
    "pseudo psycho quasi re semi socio sub super ultra un"
)
_SPECIAL_CASES = (
    "al. approx. Attn. Ave. Blvd. c. ca. Capt. cf. Cmdr. Col. Drs. ed. eds. eq. Eq. esp. Esp. Esq. est. ext. Fig. fig. "
    "Figs. figs. Fri. Ft. Hon. ibid. Lt. Maj. Mon. Nos. p. pp. Pvt. Rd. Reps. Sat. Sens. Sgt. spp. Sr. Thu. Thur. "
    "Thurs. Tue. Tues. v. viz. Vol. vol. vols. Wed. b/c w/ wan|na gim|me lem|me out|ta du|n|no 't|is 't|was"
)
# Of spaCy's own: what EWT splits, what is a common word, and emoticons that eat the bracket of "(8)" and "(a):".
_NOT_SPECIAL = re.compile(r"and/or|[iI]d|[wW]ed|[)8].*|[a-zäöü]\.")
_WHOLE = (
    r"(?:(?:\d+[-/.])*\d{1,3}-\d{4}"  # telephone number
    r"|\d+-\d+-\d+"  # date
    r"|(?:[a-z]\.){2,}"
    r"|(?:https?://|www\.)[^<>\"]*[\w/])$"
)

Spans = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: its tokens, and where each stands in the text (`text[start:end] == token`)."""

    tokens: list[str]
    spans: list[tuple[int, int]]


class Tokenizer:
    """Splits raw text into sentences of word tokens, by the conventions in this module's docstring.

    Needs the extra `elmo[text]` (spaCy). May be shared between threads and sent to other processes, and runs over an
    endless stream of texts in bounded memory.

    Args:
        language: A spaCy language code such as "en" or "ru"; "xx" is for many languages at once.

    Raises:
        ElmoError: `language` is unknown, or needs more than spaCy.
        MissingExtraError: spaCy is not installed.
    """

    def __init__(self, language: str = "en") -> None:
        nlp = _blank(language)
        self._language = language
        self._final = _FINAL | {";"} if language in ("el", "grc") else _FINAL
        self._vocab = nlp.vocab
        self._rules: Callable[[str], Doc] = _english_rules(nlp) if language == "en" else nlp.tokenizer
        self._cache: dict[str, tuple[str, ...]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]:
        """Pickles the language alone: the rules are quickly built again."""
        return Tokenizer, (self._language,)

    def __call__(self, text: str) -> list[Sentence]:
        """The sentences of `text`; none goes over a line break, and no token holds white space."""
        sentences: list[Sentence] = []
        offset = 0
        for line in text.splitlines(keepends=True):
            tokens, spans = self._words(line, offset)
            start = 0
            for end in _sentence_ends(tokens, spans, self._final):
                sentences.append(Sentence(tokens[start:end], spans[start:end]))
                start = end
            offset += len(line)
        return sentences

    def _words(self, line: str, offset: int) -> tuple[list[str], Spans]:
        tokens: list[str] = []
        spans: Spans = []
        for match in _CHUNK.finditer(line):
            chunk = match.group()
            start = offset + match.start()
            for token in self._cache.get(chunk) or self._split(chunk):
                end = start + len(token)
                tokens.append(token)
                spans.append((start, end))
                start = end
        return tokens, spans

    def _split(self, chunk: str) -> tuple[str, ...]:
        try:
            chunk.encode()
        except UnicodeEncodeError as error:
            raise ElmoError(f"The text is not valid Unicode: half a surrogate pair in {chunk[:40]!a}") from error
        if _IS_ATOM.match(chunk):
            pieces: tuple[str, ...] = (chunk,)
        elif len(chunk) > _MAX_CHUNK:
            pieces = tuple(match.group() for match in _LONG_CHUNK.finditer(chunk))
        else:
            # Outside a memory zone spaCy keeps every string it has ever seen; the zones of two threads must not meet.
            with self._lock, self._vocab.memory_zone():
                pieces = tuple([token.text for token in self._rules(chunk)])
        if len(chunk) <= _MAX_CACHED_CHUNK:
            if len(self._cache) >= _MAX_CACHE:
                self._cache.clear()
            self._cache[chunk] = pieces
        return pieces


def _blank(language: str) -> Language:
    try:
        import spacy
        import spacy.lang
        from spacy.vocab import Vocab
    except ImportError as error:
        raise MissingExtraError("Tokenising raw text", "text") from error
    packages = {module.name for module in pkgutil.iter_modules(spacy.lang.__path__) if module.ispkg}
    allowed = sorted(packages - _NEED_SEGMENTER)
    if language not in allowed:
        raise ElmoError(f'Unknown language {language!r}. Allowed are {", ".join(allowed)}; "xx" takes any language')
    # spaCy's way with Chinese would split Latin words into letters as well. The bare vocabulary knows no lexical
    # attributes: nobody reads them here, and each new word would pay for them.
    return spacy.blank("xx" if language == "zh" else language, vocab=Vocab())


def _english_rules(nlp: Language) -> Callable[[str], Doc]:
    from spacy.lang.char_classes import ALPHA
    from spacy.lang.tokenizer_exceptions import URL_PATTERN
    from spacy.symbols import ORTH
    from spacy.tokenizer import Tokenizer as RuleTokenizer
    from spacy.util import compile_infix_regex, compile_prefix_regex, compile_suffix_regex

    default: Any = nlp.Defaults
    runs = [r"[!?]{2,}", *(rf"\{char}{{2,}}" for char in "*=_~#+<>-$`")]
    prefixes = [*runs, r"[-/](?=\w)", r"@(?=\d)", "~", r"#(?![^\W\d])", r"['’](?!\d\ds?\b)"]
    prefixes += [rule for rule in default.prefixes if rule not in ("#", r"\'", "’")]
    suffixes = [
        *runs,
        r"(?<=[a-zA-Z])[nN]['’`´][tT]",
        r"(?<=[^\W\d])['’`´](?i:s|m|d|re|ve|ll)",
        r"(?<=\d)(?:[kK]|bn|MM|[ap]m|[AP]M|[ap]\.m\.|lbs|hrs)",
        r"(?:(?<=\d[A-Z])|(?<=/))\.",
        r"(?<=\w)[-+~/]",
    ]
    suffixes += [rule for rule in default.suffixes if rule not in ("'s", "'S", "’s", "’S")]
    not_bound = "".join(rf"(?<!(?<![\w-]){prefix}-)" for prefix in _BOUND_PREFIXES.split())
    infixes = [
        r"(?<=\w)--+(?=\w)",
        rf"[-–—~](?<=[{ALPHA}0-9].)(?=[{ALPHA}0-9])(?i:{not_bound})",
        r"(?<=[0-9])[+*^](?=[0-9-])",
        rf"(?<=[{ALPHA}])[;:](?=[{ALPHA}0-9])",
        r"(?<=\S)[()\[\]{}\"“”<>](?=\S)",
        r"(?<=\w)[!?]+(?=\w)",
    ]
    # spaCy's rules for hyphens, and for operators between digits, are the ones replaced above.
    infixes += [rule for rule in default.infixes if "~" not in rule and "(?<=[0-9])" not in rule]
    rules = {text: parts for text, parts in default.tokenizer_exceptions.items() if not _NOT_SPECIAL.fullmatch(text)}
    for case in _SPECIAL_CASES.split():
        rules[case.replace("|", "")] = [{ORTH: part} for part in case.split("|")]
    tokenizer: Callable[[str], Doc] = RuleTokenizer(
        nlp.vocab,
        rules=rules,
        prefix_search=compile_prefix_regex(prefixes).search,
        suffix_search=compile_suffix_regex(suffixes).search,
        infix_finditer=compile_infix_regex(infixes).finditer,
        token_match=re.compile(_WHOLE).match,
        url_match=re.compile(r'(?!.*[<>"])' + URL_PATTERN).match,
    )
    return tokenizer


def _sentence_ends(tokens: list[str], spans: Spans, final: frozenset[str]) -> list[int]:
    ends: list[int] = []
    start = after = 0
    for index in [i for i, token in enumerate(tokens) if token[-1] in final]:
        if index < after:
            continue
        after = _skip_closing(tokens, spans, index + 1)
        if after < len(tokens) and _is_end(tokens, spans, start, index, after):
            ends.append(after)
            start = after
    return [*ends, len(tokens)] if tokens else ends


def _skip_closing(tokens: list[str], spans: Spans, index: int) -> int:
    """Past what stays with the sentence that ends before `index`: closing marks, more final ones, emoticons."""
    while index < len(tokens):
        token = tokens[index]
        attached = spans[index][0] == spans[index - 1][1]
        if not (
            token[0] in _CLOSING
            or (attached and token[0] in _CLOSING_IF_ATTACHED)
            or (token[0] in _FINAL and token[-1] in _FINAL)
            or _EMOTICON.fullmatch(token)
        ):
            break
        index += 1
    return index


def _is_end(tokens: list[str], spans: Spans, start: int, index: int, after: int) -> bool:
    """Whether the sentence from `start` ends with the mark at `index`, its closing marks reaching to `after`."""
    mark, following = tokens[index], tokens[after]
    if mark[-1] in _WIDE_FINAL:
        return True
    if spans[after][0] == spans[after - 1][1]:
        return False
    if following in _DASHES and tokens[min(after + 1, len(tokens) - 1)][0].islower():
        return False
    if mark[-1] == "." != mark[0]:
        return _OPENER.fullmatch(following) is not None
    if mark == "." and after == index + 1:
        # What follows may be in lower case: people write so on the web, and edited text has its abbreviations whole.
        before = tokens[index - 1] if index > start else ""
        is_letter = len(before) == 1 and before.isalpha()
        is_numbering = index == start + 1 and (is_letter or before.isdigit())
        is_abbreviation = (is_letter and following[0].islower()) or (before == "No" and following[0].isdigit())
        return not (is_numbering or is_abbreviation)
    return not (following[0].islower() and (after > index + 1 or mark[0] in ".…"))
