"""Batches cut a number of prompts completely, in bounded memory; budgets buy prompts within limits."""

import pytest

from lib.prompts.batches import affordable_prompts, batches


@pytest.mark.parametrize(("count", "each", "at_once"), [(10, 3, 9), (1, 100, 5), (7, 1, 7), (8, 1, 7), (5, 10, 1)])
def test_batches_cover_every_prompt_once_and_no_more_than_fit(count, each, at_once):
    parts = list(batches(count, each, at_once))
    assert [k for part in parts for k in range(part.start, part.stop)] == list(range(count))
    assert all((part.stop - part.start) * each <= max(at_once, each) for part in parts)


def test_nothing_is_cut_into_nothing():
    assert list(batches(0, 3)) == []


def test_a_budget_buys_prompts_within_limits():
    assert affordable_prompts(10, 2, 1000, most=10**6) == 50
    assert affordable_prompts(1000, 5, 10**6, most=10**6) == 200
    assert affordable_prompts(10, 2, 1000, most=30) == 30
    assert affordable_prompts(10**6, 2, 1000, most=30) == 24
