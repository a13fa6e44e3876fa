from __future__ import annotations

from qdeploy.train.order import LongestFirst


def order(lengths: list[int], *, batch: int = 4, seed: int = 0) -> LongestFirst:
    return LongestFirst(lengths, global_batch=batch, seed=seed)


def test_the_longest_begin_the_first_epoch_only() -> None:
    lengths = [3, 9, 1, 7, 5, 2, 8, 4]
    sampler = order(lengths)
    assert [lengths[index] for index in list(sampler)[:4]] == [9, 8, 7, 5]
    firsts = set()
    for epoch in range(1, 20):
        sampler.set_epoch(epoch)
        firsts.add(next(iter(sampler)))
    assert len(firsts) > 2


def test_each_epoch_is_a_permutation_cut_to_whole_steps() -> None:
    for count, kept in ((8, 8), (9, 8), (11, 8), (4, 4), (3, 0)):
        sampler = order([1] * count)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            chosen = list(sampler)
            assert len(chosen) == len(sampler) == kept
            assert len(set(chosen)) == kept
            assert set(chosen) <= set(range(count))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = list(range(40))
    assert list(order(lengths)) == list(order(lengths))
    assert list(order(lengths, seed=1)) != list(order(lengths))
    later, fresh = order(lengths), order(lengths)
    list(later)
    later.set_epoch(3)
    fresh.set_epoch(3)
    assert list(later) == list(fresh)
