#!/usr/bin/env python3
"""The statistics decide as they should on made-up times, with and without a difference put into them."""
import itertools
import random
import unittest

import timing_stats as stats

ALPHA = 1e-4


def times(draw, count, middle=60.0, spread=4.0):
    """Like times to a first token: a bell, and one in twenty that met something else."""
    return [draw.gauss(middle, spread) + (draw.expovariate(1 / 30) if draw.random() < 0.05 else 0) for _ in range(count)]


class TimingStats(unittest.TestCase):
    def test_the_smirnov_chance_is_that_of_all_ways_to_deal_the_labels(self):
        values = range(8)
        dealt = [(chosen, [v for v in values if v not in chosen]) for chosen in itertools.combinations(values, 4)]
        found = [stats.smirnov(list(sooner), later) for sooner, later in dealt]
        for d, p in found:
            self.assertAlmostEqual(p, sum(other >= d for other, _ in found) / len(found))

    def test_the_smirnov_test_looks_to_one_side_only(self):
        self.assertLess(stats.smirnov([1, 2, 3] * 10, [4, 5, 6] * 10)[1], ALPHA)
        self.assertEqual(stats.smirnov([4, 5, 6] * 10, [1, 2, 3] * 10), (0, 1))
        self.assertEqual(stats.smirnov([1, 1, 1], [1, 1, 1]), (0, 1))
        with self.assertRaises(ValueError):
            stats.smirnov([1], [1, 2])

    def test_equal_times_are_found_the_same(self):
        same = 0
        for seed in range(40):
            draw = random.Random(seed)
            hits, misses = times(draw, 250), times(draw, 250)
            self.assertGreater(stats.smirnov(hits, misses)[1], ALPHA)
            same += stats.judge_same(stats.shift(hits, misses)[1:], 5.0) == "same"
        self.assertEqual(same, 40)

    def test_a_planted_lead_is_found(self):
        for seed in range(10):
            draw = random.Random(seed)
            hits, misses = times(draw, 250, middle=54), times(draw, 250)
            self.assertLess(stats.smirnov(hits, misses)[1], ALPHA)
            estimate, low, high = stats.shift(hits, misses)
            self.assertTrue(4 < low < estimate < high < 8, (low, estimate, high))
            self.assertEqual(stats.judge_same((low, high), 1.0), "differs")
            self.assertNotEqual(stats.judge_same((low, high), 5.5), "same")

    def test_a_lead_at_the_margin_is_rarely_called_the_same(self):
        wrong = 0
        for seed in range(200):
            draw = random.Random(seed)
            hits, misses = times(draw, 80, middle=58), times(draw, 80)
            wrong += stats.judge_same(stats.shift(hits, misses)[1:], 2.0) == "same"
        self.assertLessEqual(wrong, 20)  # 5% are expected, 10 of 200

    def test_the_interval_of_the_shift_holds_the_truth_as_often_as_it_says(self):
        held = 0
        for seed in range(300):
            draw = random.Random(seed)
            _, low, high = stats.shift(times(draw, 40), times(draw, 40, middle=63))
            held += low <= 3 <= high
        self.assertTrue(255 <= held <= 285, held)  # 90% are 270

    def test_few_samples_decide_nothing(self):
        draw = random.Random(1)
        self.assertEqual(stats.judge_same(stats.shift(times(draw, 5), times(draw, 5))[1:], 1.0), "undecided")

    def test_wins_of_a_fair_coin(self):
        self.assertEqual(stats.wins_at_least(0, 10), 1)
        self.assertEqual(stats.wins_at_least(10, 10), 1 / 1024)
        self.assertAlmostEqual(stats.wins_at_least(6, 10), 386 / 1024)
        self.assertLess(stats.wins_at_least(560, 1000), ALPHA)
        self.assertGreater(stats.wins_at_least(555, 1000), ALPHA)

    def test_who_was_written_first_is_no_advantage_of_hits(self):
        estimate, low, high = stats.advantage(450, 500, 50, 500)
        self.assertEqual(estimate, 0)
        self.assertEqual(stats.judge_same((low, high), 0.05), "same")
        self.assertLess(high, 0.02)  # half of what a coin would leave

    def test_an_advantage_of_hits_is_found(self):
        estimate, low, high = stats.advantage(500, 500, 490, 500)
        self.assertAlmostEqual(estimate, 0.49)
        self.assertTrue(0.47 < low < high < 0.51)
        self.assertEqual(stats.judge_same((low, high), 0.05), "differs")
        self.assertEqual(stats.judge_same(stats.advantage(290, 500, 290, 500)[1:], 0.05), "differs")
        self.assertEqual(stats.judge_same(stats.advantage(25, 50, 25, 50)[1:], 0.05), "undecided")


if __name__ == "__main__":
    unittest.main()
