"""Writes the company's documents: PDFs with its letterhead, and workbooks."""

from datetime import datetime
from pathlib import Path

from fpdf import FPDF
from openpyxl import Workbook
from openpyxl.styles import Font

from examples.company import NAME, TOWN

DOCUMENTS = Path(__file__).parent / "documents"
WRITTEN = datetime(2025, 1, 6, 9, 0)

#: The rows of a table. The first row is the header.
Rows = list[list[str | int | float]]


class Paper(FPDF):
    """A PDF with chapters, paragraphs and tables."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title_line = title
        self.set_title(title)
        self.set_author(NAME)
        self.set_creation_date(WRITTEN)
        self.set_margins(22, 20)
        self.add_page()
        self.set_font("Times", "B", 22)
        self.multi_cell(0, 11, title, new_x="LMARGIN", new_y="NEXT")
        self.ln(4)

    def header(self) -> None:
        self.set_font("Helvetica", "", 8)
        self.cell(0, 6, f"{NAME}  |  {TOWN}", new_x="LMARGIN", new_y="NEXT")
        self.ln(4)

    def footer(self) -> None:
        self.set_y(-15)
        self.set_font("Helvetica", "", 8)
        self.cell(0, 6, f"{self._title_line}, page {self.page_no()}", align="C")

    def chapter(self, title: str, *paragraphs: str) -> None:
        if self.get_y() > 230:
            self.add_page()
        self.set_font("Times", "B", 14)
        self.cell(0, 9, title, new_x="LMARGIN", new_y="NEXT")
        for paragraph in paragraphs:
            self.paragraph(paragraph)

    def paragraph(self, text: str) -> None:
        self.set_font("Times", "", 11)
        self.multi_cell(0, 5.6, text, new_x="LMARGIN", new_y="NEXT")
        self.ln(2)

    def rows(self, rows: Rows) -> None:
        self.set_font("Helvetica", "", 8)
        aligned = ("LEFT", *["RIGHT"] * (len(rows[0]) - 1))
        with self.table(line_height=5, borders_layout="HORIZONTAL_LINES", text_align=aligned) as table:
            for row in rows:
                table.row([f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row])
        self.ln(4)

    def save(self, name: str) -> Path:
        self.output(str(DOCUMENTS / name))
        return DOCUMENTS / name


def workbook(name: str, sheets: dict[str, Rows]) -> Path:
    book = Workbook()
    book.remove(book.active)
    book.properties.created = book.properties.modified = WRITTEN
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
        for cell in sheet[1]:
            cell.font = Font(bold=True)
    book.save(DOCUMENTS / name)
    return DOCUMENTS / name
