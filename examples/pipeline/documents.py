"""Reads documents: the text of a PDF, and the words and numbers of a spreadsheet. Independent of Celery."""

import csv
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypedDict

import openpyxl
from celery.exceptions import SoftTimeLimitExceeded
from pypdf import PdfReader
from pypdf.errors import DependencyError, FileNotDecryptedError

TYPES = {".pdf": "pdf", ".xlsx": "excel", ".xlsm": "excel", ".csv": "excel"}

#: Maximum number of pages and rows that are read, so that no single document takes too long.
MAX_PAGES = 40
MAX_ROWS = 10_000

#: First bytes of Office files that are not zip archives: encrypted files, and the formats before 2007.
OLE_MAGIC = b"\xd0\xcf\x11\xe0"

logging.getLogger("pypdf").setLevel(logging.CRITICAL)


class UnreadableError(Exception):
    """The document cannot be read. The message is one line of text for the user."""


class Figures(TypedDict):
    """A summary of the numbers in one column of a sheet."""

    sheet: str
    column: str
    count: int
    total: float
    min: float
    max: float


class Document(TypedDict):
    """The content of a document, which the reading task passes to the indexing task as JSON."""

    path: str
    #: (name, text) of each page or sheet.
    parts: list[tuple[str, str]]
    figures: list[Figures]


def find(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the documents below *folder* and the other files, both sorted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "~$")))
    return [f for f in files if f.suffix.lower() in TYPES], [f for f in files if f.suffix.lower() not in TYPES]


def type_of(path: Path) -> str:
    return TYPES[path.suffix.lower()]


def read(path: Path) -> Document:
    return read_pdf(path) if type_of(path) == "pdf" else read_excel(path)


def read_pdf(path: Path) -> Document:
    """Return the text of each page. Raises UnreadableError."""
    with _errors_in_one_line(path):
        pages = islice(PdfReader(path).pages, MAX_PAGES)
        parts = [(f"page {number}", page.extract_text()) for number, page in enumerate(pages, 1)]
    if not any(text.strip() for _, text in parts):
        raise UnreadableError(f"{path.name}: holds no text (scanned pages?)")
    return {"path": str(path), "parts": parts, "figures": []}


def read_excel(path: Path) -> Document:
    """Return the words of each sheet, and a summary of its number columns. Raises UnreadableError."""
    parts: list[tuple[str, str]] = []
    figures: list[Figures] = []
    with _errors_in_one_line(path):
        for sheet, rows in _sheets(path):
            words, columns = _read_sheet(sheet, islice(rows, MAX_ROWS))
            parts.append((f"sheet {sheet}", "\n".join([*words, *map(_summary, columns)])))
            figures += columns
    return {"path": str(path), "parts": parts, "figures": figures}


@contextmanager
def _errors_in_one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except UnreadableError:
        raise
    except (FileNotDecryptedError, DependencyError):
        raise UnreadableError(f"{path.name}: is protected by a password") from None
    except SoftTimeLimitExceeded:
        raise UnreadableError(f"{path.name}: takes too long to read") from None
    except OSError as exc:
        raise UnreadableError(f"{path.name}: cannot be opened ({exc.strerror or exc})") from None
    except Exception as exc:  # a damaged file can raise any error of pypdf, zipfile, the XML parser or openpyxl
        reason = (str(exc) or type(exc).__name__).splitlines()[0][:80]
        raise UnreadableError(f"{path.name}: is damaged ({reason})") from None


def _sheets(path: Path) -> Iterator[tuple[str, Iterable[Iterable[object]]]]:
    if path.suffix.lower() == ".csv":
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            yield path.stem, (map(_number, row) for row in csv.reader(file))
        return
    with path.open("rb") as file:
        if file.read(4) == OLE_MAGIC:
            encrypted = "EncryptedPackage".encode("utf-16-le") in file.read()
            reason = "is protected by a password" if encrypted else "is in an old Excel format; save it as .xlsx"
            raise UnreadableError(f"{path.name}: {reason}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and validations, which this module does not read
        workbook = openpyxl.load_workbook(path, read_only=True, data_only=True)
        yield from ((sheet.title, sheet.iter_rows(values_only=True)) for sheet in workbook.worksheets)
        workbook.close()


def _read_sheet(sheet: str, rows: Iterable[Iterable[object]]) -> tuple[list[str], list[Figures]]:
    """Return the distinct words of a sheet in order, and a summary of its number columns, named by the first row."""
    words: dict[str, None] = {}
    names: list[str] = []
    numbers: dict[int, list[float]] = {}
    for row in rows:
        cells = list(row)
        names = names or [str(cell or "") for cell in cells]
        for column, cell in enumerate(cells):
            if isinstance(cell, (int, float)) and not isinstance(cell, bool):
                numbers.setdefault(column, []).append(cell)
            elif cell is not None:
                words[str(cell)] = None
    return list(words), [
        {
            "sheet": sheet,
            "column": names[column] if column < len(names) else str(column + 1),
            "count": len(values),
            "total": sum(values),
            "min": min(values),
            "max": max(values),
        }
        for column, values in sorted(numbers.items())
    ]


def _summary(column: Figures) -> str:
    limits = f"{column['min']:g} to {column['max']:g}"
    return f"{column['column']}: {column['count']} values, {limits}, sum {column['total']:g}"


def _number(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell
