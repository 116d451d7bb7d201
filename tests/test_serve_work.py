"""The queue before the model: what is batched, who waits, who is refused, what is freed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elmo
from conftest import small_options, write_model
from elmo.errors import ElmoError
from elmo.serve.metrics import Metrics
from elmo.serve.refused import Refused
from elmo.serve.settings import Settings
from elmo.serve.work import Work

Tokens = list[list[str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return elmo.load(folder)


class Lengths:
    """A function of sentences that notes what it was called with, and waits until it may go on."""

    def __init__(self) -> None:
        self.calls: list[Tokens] = []
        self.may_go_on = threading.Event()
        self.started = threading.Event()

    def __call__(self, sentences: Tokens) -> list[int]:
        self.calls.append(sentences)
        self.started.set()
        assert self.may_go_on.wait(30)
        return list(map(len, sentences))

    async def occupy(self, work: Work) -> asyncio.Task[list[int]]:
        """Have the model's thread busy with a first sentence."""
        first = asyncio.create_task(work.each(self, ["first"]))
        await asyncio.to_thread(self.started.wait, 30)
        return first


def run(model: elmo.Model, test: Callable[[Work], Awaitable[None]], **limits: object) -> None:
    """Run a test with a queue of its own."""

    async def main() -> None:
        work = Work(model, Settings(**limits), Metrics())  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(test(work), 60)
        finally:
            await work.close()

    asyncio.run(main())


WORDS = st.lists(st.lists(st.text(min_size=1, max_size=5), max_size=9), max_size=6)


@settings(max_examples=25)
@given(requests=st.lists(WORDS, min_size=1, max_size=5), budget=st.integers(1, 40))
def test_requests_that_share_batches_get_what_they_would_get_alone(
    model: elmo.Model, requests: list[Tokens], budget: int
) -> None:
    async def test(work: Work) -> None:
        answers = await asyncio.gather(*map(work.layers, requests))
        for sentences, layers in zip(requests, answers, strict=True):
            alone = model.embed(sentences, layers="all")
            assert len(alone) == len(layers)
            for one, other in zip(alone, layers, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-6)

    run(model, test, batch_tokens=budget)


def test_what_waits_behind_a_batch_is_computed_together(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        lengths = Lengths()
        first = await lengths.occupy(work)
        others = [asyncio.create_task(work.each(lengths, [f"{i} b", "c"])) for i in range(10)]
        await asyncio.sleep(0)
        lengths.may_go_on.set()
        assert await first == [1]
        assert await asyncio.gather(*others) == [[2, 1]] * 10
        assert [len(call) for call in lengths.calls] == [1, 20]

    run(model, test)


def test_the_first_waits_a_little_for_others(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        lengths = Lengths()
        lengths.may_go_on.set()
        first = asyncio.create_task(work.each(lengths, ["a"]))
        await asyncio.sleep(0.05)
        assert await work.each(lengths, ["b c"]) == [2]
        assert await first == [1]
        assert lengths.calls == [[["a"], ["b", "c"]]]

    run(model, test, wait_ms=2000, batch_tokens=3)


@settings(max_examples=30)
@given(sizes=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=8), min_size=1, max_size=6))
def test_a_batch_keeps_its_budget_and_nothing_is_lost_or_done_twice(model: elmo.Model, sizes: list[list[int]]) -> None:
    async def test(work: Work) -> None:
        lengths = Lengths()
        first = await lengths.occupy(work)
        tasks = [asyncio.create_task(work.each(lengths, [["w"] * n for n in request])) for request in sizes]
        await asyncio.sleep(0)
        lengths.may_go_on.set()
        await first
        assert await asyncio.gather(*tasks) == sizes
        for call in lengths.calls:
            assert sum(map(len, call)) <= 8 + 6  # the last sentence may go over
        assert sum(map(len, lengths.calls)) == 1 + sum(map(len, sizes))

    run(model, test, batch_tokens=8)


def test_a_large_request_does_not_hold_up_a_small_one(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        order: list[str] = []

        async def ask(name: str, sentences: int) -> None:
            await work.each(lengths, ["a b c d"] * sentences)
            order.append(name)

        lengths = Lengths()
        first = await lengths.occupy(work)
        tasks = [asyncio.create_task(ask("large", 100)), asyncio.create_task(ask("small", 1))]
        await asyncio.sleep(0)
        lengths.may_go_on.set()
        await asyncio.gather(first, *tasks)
        assert order == ["small", "large"]

    run(model, test, batch_tokens=16)


def test_other_functions_have_their_own_batches(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        lengths, others = Lengths(), Lengths()
        others.may_go_on.set()
        first = await lengths.occupy(work)
        tasks = [asyncio.create_task(work.each((lengths, others)[i % 2], ["a"])) for i in range(6)]
        alone = asyncio.create_task(work.run(lambda: threading.current_thread().name))
        await asyncio.sleep(0)
        lengths.may_go_on.set()
        await asyncio.gather(first, *tasks)
        assert await alone == "model"
        assert [len(call) for call in lengths.calls] == [1, 3]
        assert [len(call) for call in others.calls] == [3]

    run(model, test)


def test_a_full_house_refuses_and_says_when_to_come_back(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        lengths = Lengths()
        first = await lengths.occupy(work)
        with pytest.raises(Refused, match="try again in") as by_tokens:
            await work.each(lengths, ["a b c d"])
        second = asyncio.create_task(work.each(lengths, ["a"]))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="requests are in the house") as by_requests:
            await work.each(lengths, ["a"])
        for refused in (by_tokens, by_requests):
            assert refused.value.status == 429
            assert int(refused.value.headers["Retry-After"]) >= 1
        lengths.may_go_on.set()
        await asyncio.gather(first, second)
        assert work.load == (0, 0)
        assert await work.each(lengths, ["a b c d"]) == [4]

    run(model, test, max_requests=2, max_tokens=4, max_house_tokens=4)


def test_tokens_count_until_the_visit_is_over(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        with work.visit():
            await work.layers(["a b", "c"])
            assert work.load == (1, 3)
        assert work.load == (0, 0)

    run(model, test)


def test_tokens_of_what_is_run_alone_count_for_the_speed(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        before = work._metrics.tokens_per_second
        await work.run(lambda: None, 1000)
        assert before == 0 < work._metrics.tokens_per_second

    run(model, test)


def test_a_request_that_is_given_up_leaves_the_queue(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        lengths = Lengths()
        first = await lengths.occupy(work)
        given_up = asyncio.create_task(work.each(lengths, ["nobody wants this"]))
        await asyncio.sleep(0)
        assert work.load == (2, 4)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert work.load == (1, 1)
        lengths.may_go_on.set()
        await first
        await work.run(lambda: None)
        assert lengths.calls == [[["first"]]]

    run(model, test)


def test_one_that_is_given_up_while_it_waits_for_others_does_not_stop_the_thread(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        lengths = Lengths()
        lengths.may_go_on.set()
        given_up = asyncio.create_task(work.each(lengths, ["a"]))
        await asyncio.sleep(0.02)
        given_up.cancel()
        await asyncio.sleep(0.1)
        assert await work.each(lengths, ["b"]) == [1]

    run(model, test, wait_ms=60)


def test_what_takes_too_long_is_answered(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        lengths = Lengths()
        with pytest.raises(Refused, match=r"within 0\.05 seconds") as refused:
            await work.each(lengths, ["a"])
        assert refused.value.status == 503
        lengths.may_go_on.set()
        assert work.load == (0, 0)

    run(model, test, timeout=0.05)


def test_an_error_reaches_those_who_asked_and_nobody_else(model: elmo.Model) -> None:
    def fail(sentences: Tokens) -> list[int]:
        raise ElmoError("not today")

    async def test(work: Work) -> None:
        failing = [asyncio.create_task(work.each(fail, ["a"])) for _ in range(3)]
        good = asyncio.create_task(work.layers(["a b"]))
        for task in failing:
            with pytest.raises(ElmoError, match="not today"):
                await task
        assert len(await good) == 1
        assert work.load == (0, 0)

    run(model, test)


def test_an_end_finishes_what_was_accepted_and_takes_no_more(model: elmo.Model) -> None:
    async def test(work: Work) -> None:
        lengths = Lengths()
        accepted = [await lengths.occupy(work), asyncio.create_task(work.each(lengths, ["a b"]))]
        await asyncio.sleep(0)
        ending = asyncio.create_task(work.close())
        await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="is ending"):
            await work.each(lengths, ["late"])
        lengths.may_go_on.set()
        assert await asyncio.gather(*accepted) == [[1], [2]]
        await ending

    run(model, test)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (["a"] * 5, "5 sentences: at most 4"),
        (["a b c", "d e f", "g h i"], "9 tokens: at most 8"),
        (["a b c d"], "4 tokens in one sentence: at most 3"),
    ],
)
def test_a_request_beyond_its_limits_is_too_large(model: elmo.Model, sentences: list[str], message: str) -> None:
    async def test(work: Work) -> None:
        with pytest.raises(Refused, match=message) as refused:
            await work.layers(sentences)
        assert refused.value.status == 413

    run(model, test, max_sentences=4, max_tokens=8, max_length=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_tokens", 0),
        ("timeout", -1.0),
        ("wait_ms", float("nan")),
        *(("api_key", key) for key in ("short", "ein Schlüssel", "two\nlines of a key", "an open end ")),
    ],
)
def test_settings_that_nothing_could_pass_are_refused(name: str, value: object) -> None:
    with pytest.raises(ElmoError, match="API key" if name == "api_key" else name):
        Settings(**{name: value})  # type: ignore[arg-type]


def test_a_house_must_hold_the_largest_request() -> None:
    with pytest.raises(ElmoError, match="max_house_tokens is 10"):
        Settings(max_house_tokens=10)


def test_a_key_is_not_shown() -> None:
    assert "secret key" not in repr(Settings(api_key="secret key"))
