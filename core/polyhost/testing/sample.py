"""A tiny repository with one failing unit test: what ``hostctl run --demo`` works on, and a subject for tests.

Standard library only, run with the current interpreter.
"""

from __future__ import annotations

from pathlib import Path

MODULE = "shop/prices.py"
FAILING_TEST = "test_discount_never_makes_a_price_negative"
BROKEN = "    return price - discount\n"
MENDED = "    return max(price - discount, 0)\n"
DIAGNOSIS = "A discount larger than the price gives a negative price. I bound it at zero."
SUMMARY = f"A discount can no longer make a price negative; the change is one line in {MODULE}."

FILES = {
    "README.md": "# Shop\n\nPrices in cents. Run the tests with `python -m unittest`.\n",
    "shop/__init__.py": "",
    MODULE: f'''"""Prices, in whole cents."""


def total(prices: list[int]) -> int:
    """The sum of all prices."""
    return sum(prices)


def discounted(price: int, discount: int) -> int:
    """The price after a discount in cents, never below zero."""
{BROKEN}''',
    "test_prices.py": f"""import unittest

from shop.prices import discounted, total


class PricesTest(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([100, 250]), 350)

    def test_discount(self):
        self.assertEqual(discounted(1000, 250), 750)

    def {FAILING_TEST}(self):
        self.assertEqual(discounted(100, 250), 0)


if __name__ == "__main__":
    unittest.main()
""",
}


def create(folder: Path) -> None:
    """Write the sample into ``folder``, which must exist. Raises OSError."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
