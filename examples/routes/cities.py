"""The stops of the cities, from `stops.csv`. The first stop of a city is its base, where all tours begin and end."""

import csv
from functools import cache
from math import asin, cos, radians, sin, sqrt
from pathlib import Path
from typing import NamedTuple

STOPS = Path(__file__).with_name("stops.csv")

EARTH_RADIUS_KM = 6371.0088

#: Approximate number of stops per agent.
STOPS_PER_AGENT = 12


class Stop(NamedTuple):
    name: str
    latitude: float
    longitude: float


class City(NamedTuple):
    name: str
    base: Stop
    stops: list[Stop]

    @property
    def agents(self) -> int:
        return max(2, round(len(self.stops) / STOPS_PER_AGENT))


@cache
def all_cities() -> dict[str, City]:
    cities: dict[str, City] = {}
    with STOPS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            stop = Stop(row["stop"], float(row["latitude"]), float(row["longitude"]))
            if row["city"] in cities:
                cities[row["city"]].stops.append(stop)
            else:
                cities[row["city"]] = City(row["city"], stop, [])
    return cities


def distance_km(a: Stop, b: Stop) -> float:
    """Return the great-circle distance of two stops (haversine formula)."""
    half_latitude, half_longitude = radians(b.latitude - a.latitude) / 2, radians(b.longitude - a.longitude) / 2
    h = sin(half_latitude) ** 2 + cos(radians(a.latitude)) * cos(radians(b.latitude)) * sin(half_longitude) ** 2
    return 2 * EARTH_RADIUS_KM * asin(min(1.0, sqrt(h)))
