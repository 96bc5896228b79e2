"""The data of the invented company in company.toml, and its invented sales of four years."""

import random
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

YEARS = (2021, 2022, 2023, 2024)
MONTHS = ("January", "February", "March", "April", "May", "June", "July")
MONTHS += ("August", "September", "October", "November", "December")

Chapters = dict[str, list[str]]


@dataclass(frozen=True)
class Product:
    code: str
    name: str
    price: int
    measures: str
    accuracy: str
    power: str
    purpose: str
    mounting: str
    care: str
    fault: str


class Customer(NamedTuple):
    name: str
    region: str
    contact: str


class Sale(NamedTuple):
    year: int
    month: int
    product: Product
    region: str
    units: int
    revenue: int


def _one_line(text: object) -> object:
    return " ".join(text.split()) if isinstance(text, str) else text


def chapters(name: str) -> Chapters:
    """Return the chapters of one of the company's books: chapter title -> paragraphs."""
    return {title: [" ".join(text.split()) for text in texts] for title, texts in FACTS[name].items()}


NAME: str = FACTS["name"]
TOWN: str = FACTS["town"]
REGIONS: list[str] = FACTS["regions"]
PRODUCTS = [Product(**{key: _one_line(value) for key, value in fields.items()}) for fields in FACTS["products"]]
CUSTOMERS = [Customer(**fields) for fields in FACTS["customers"]]


@cache
def sales() -> list[Sale]:
    """Return invented sales: more in autumn, wave buoys from March 2023 on, and a strong Baltic region in 2024."""
    rng = random.Random("Harbour & Vale")
    result = []
    months = [(year, month) for year in YEARS for month in range(1, 13)]
    for year, month in months:
        for product in PRODUCTS:
            if product.code == "WV-3" and (year, month) < (2023, 3):
                continue
            for region in REGIONS:
                expected = 9000 / (product.price + 250) * (1.4 if month in (9, 10, 11) else 1.0)
                expected *= 1.6 if (year, region) == (2024, "Baltic") else 1.0
                units = max(0, round(rng.gauss(expected, expected / 3)))
                price = round(product.price * 1.03 ** (year - 2024))
                result.append(Sale(year, month, product, region, units, units * price))
    return result
