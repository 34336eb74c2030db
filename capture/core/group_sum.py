"""Which order of summation gives sixteen equal rewards an advantage?  Needs torch, and no GPU.

One group of sixteen rewards, all the same, goes through the formula of GRPO in float32: less the
mean, divided by the standard deviation plus 1e-6.  The mean is taken in three orders, and the
deviation of one group alone and of a table of groups.  Exit code 0; it judges nothing.
"""

from __future__ import annotations

import numpy
import torch

EPSILON = 1e-6  # what the formula adds to the deviation
LANES = 8  # float32 numbers that one vector register of the processor holds


def loop_sum(numbers: numpy.ndarray) -> numpy.float32:
    """One after the other, in float32."""
    total = numpy.float32(0)
    for number in numbers:
        total = numpy.float32(total + number)
    return total


def lane_sum(numbers: numpy.ndarray, lanes: int = LANES) -> numpy.float32:
    """Every eighth number into one lane, then the lanes one after the other, in float32."""
    sums = [loop_sum(numbers[lane::lanes]) for lane in range(lanes)]
    return loop_sum(numpy.array(sums, dtype=numpy.float32))


def advantage(rewards: torch.Tensor, deviation: torch.Tensor) -> float:
    """The advantage of the first answer, by the formula."""
    return ((rewards - rewards.mean()) / (deviation + EPSILON))[0].item()


def main() -> int:
    """Print what each order gives for 0.3 and for 0.25."""
    print(f"torch {torch.__version__.partition('+')[0]}")
    for reward in (0.3, 0.25):
        group = torch.full((16,), reward)
        numbers = group.numpy()
        print(f"sixteen rewards of {reward}")
        for name, total in (
            ("one after the other", loop_sum(numbers)),
            ("numpy, in pairs", numbers.sum()),
            (f"in {LANES} lanes", lane_sum(numbers)),
            ("torch", numpy.float32(group.sum().item())),
        ):
            off = float(numpy.float32(total / numpy.float32(16)) - numbers[0])
            print(f"  mean, {name:<20} off by {off:.3e}")
        alone = group.std()
        table = group.repeat(4, 1).std(dim=1)[0]
        print(f"  deviation, one group alone     {alone.item():.3e}")
        print(f"  deviation, in a table of four  {table.item():.3e}")
        print(f"  advantage, one group alone     {advantage(group, alone):+.4f}")
        print(f"  advantage, in a table of four  {advantage(group, table):+.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
