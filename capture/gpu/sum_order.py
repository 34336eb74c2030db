#!/usr/bin/env python3
"""Show that the order of a float32 sum changes its last bits, on made-up numbers.

Every sum has the same numbers. Only the order differs: left to right, right to left, blocks of 64,
or neighbours in pairs. A calculation, not a measurement of any engine or trainer.

Exit codes: 0 done, 2 bad usage.
"""

import argparse
import random
import struct

WIDTH = 576  # numbers in one sum: the hidden size of the model of our runs
BLOCK = 64
SEED = 8


def single(number):
    """The float32 next to `number`."""
    return struct.unpack("f", struct.pack("f", number))[0]


def numbers(source, count):
    """`count` numbers between -1 and 1 that float32 holds exactly."""
    return [source.randrange(-(2**20), 2**20) / 2**20 for _ in range(count)]


def left_to_right(terms):
    """Sum with one running total, rounded to float32 after each addition."""
    total = 0.0
    for term in terms:
        total = single(total + term)
    return total


def right_to_left(terms):
    """The same from the other end."""
    return left_to_right(terms[::-1])


def blocks(terms):
    """Sum of the sums of blocks, as a kernel with tiles adds."""
    parts = [terms[at : at + BLOCK] for at in range(0, len(terms), BLOCK)]
    return left_to_right([left_to_right(part) for part in parts])


def pairs(terms):
    """Sum in a tree of neighbours."""
    while len(terms) > 1:
        if len(terms) % 2:
            terms = [*terms, 0.0]
        terms = [single(terms[at] + terms[at + 1]) for at in range(0, len(terms), 2)]
    return terms[0]


ORDERS = {
    "left to right": left_to_right,
    "right to left": right_to_left,
    f"blocks of {BLOCK}": blocks,
    "pairs": pairs,
}


def products(source):
    """The terms of one made-up dot product, each rounded to float32."""
    left, right = numbers(source, WIDTH), numbers(source, WIDTH)
    return [single(left[at] * right[at]) for at in range(WIDTH)]


def different(sums):
    """In how many of the dot products each order gives another sum than the first order."""
    first = next(iter(ORDERS))
    return {name: sum(row[name] != row[first] for row in sums) for name in ORDERS}


def build_parser():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sums", type=int, default=400, help="how many sums (default 400)")
    return parser


def main(argv=None):
    """Print one sum in each order, and how many of the sums change with the order."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.sums < 1:
        parser.error("--sums must be at least 1")
    source = random.Random(SEED)
    sums = []
    for _ in range(args.sums):
        terms = products(source)
        sums.append({name: order(terms) for name, order in ORDERS.items()})
    counts = different(sums)
    print(f"{args.sums} sums of {WIDTH} products in float32, the same products in each order")
    print(f"{'order':<15}{'first sum':>14}  sums unlike the first row")
    for name in ORDERS:
        print(f"{name:<15}{sums[0][name]:>14.8f}  {counts[name]:>5} of {args.sums}")


if __name__ == "__main__":
    main()
