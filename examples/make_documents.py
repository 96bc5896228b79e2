"""Generate examples/documents: PDFs and spreadsheets of an invented company.

    pip install fpdf2 openpyxl msoffcrypto-tool
    python -m examples.make_documents

The generated files are committed, so you do not need to run this. Three of them are unreadable on purpose.
"""

import csv
import random
from datetime import datetime, timedelta
from io import BytesIO
from itertools import groupby
from math import cos, pi

from fpdf.enums import AccessPermission
from msoffcrypto.format.ooxml import OOXMLFile

from examples.company import CUSTOMERS, MONTHS, PRODUCTS, REGIONS, YEARS, Chapters, Product, chapters, sales
from examples.stationery import DOCUMENTS, Paper, Rows, workbook

ACCOUNTS = {
    "Workshop": ["Ceramic bearings", "Copper and cable", "Circuit boards", "Energy"],
    "Sea trials": ["Boat and fuel", "Moorings", "Divers", "Insurance"],
    "Office": ["Freight", "Training of apprentices", "Harbour festival", "Coffee"],
}
PARTS = {"cable": 0.03, "mast clamp": 0.04, "bearing": 0.08, "housing": 0.2, "main board": 0.45}
TESTERS = ["Ada Thorn", "Felix Okoro", "Lena Voss"]


def main() -> None:
    DOCUMENTS.mkdir(exist_ok=True)
    for year in YEARS:
        annual_report(year)
        sales_book(year)
    for product in PRODUCTS:
        manual(product)
    for number in range(1, 9):
        invoice(number)
    book("employee-handbook.pdf", "Handbook for everyone who works here", chapters("handbook"))
    book("how-to-read-the-tide.pdf", "How to read the tide: a small guide", chapters("tides"))
    book("board-minutes-2024.pdf", "Minutes of the board, 2024", chapters("minutes"))
    price_list(2024, 1.0)
    price_list(2025, 1.035)
    for month in range(1, 5):
        tide_station(month)
    calibration_records()
    stock()
    budget()
    customers()
    damaged_scan()
    protected_contract()
    protected_payroll()
    files = list(DOCUMENTS.iterdir())
    print(f"{len(files)} documents, {sum(file.stat().st_size for file in files) / 1e6:.2f} MB, in {DOCUMENTS}")


def total(**wanted: object) -> int:
    """Return the revenue of the sales with these values, for example year=2023, region="Baltic"."""
    return sum(sale.revenue for sale in sales() if all(getattr(sale, key) == value for key, value in wanted.items()))


def change(now: int, before: int) -> str:
    if not before:
        return "for the first time"
    percent = round(100 * (now / before - 1))
    return f"{abs(percent)} percent {'more' if percent >= 0 else 'less'} than the year before"


def annual_report(year: int) -> None:
    paper = Paper(f"Annual report {year}")
    revenue = total(year=year)
    paper.chapter("To our owners and friends", *chapters("news")[str(year)])
    paper.paragraph(f"We sold instruments for {revenue:,}, {change(revenue, total(year=year - 1))}.")
    paper.chapter("Regions")
    by_region = {region: total(year=year, region=region) for region in REGIONS}
    shares: Rows = [[region, sold, f"{100 * sold / revenue:.1f} %"] for region, sold in by_region.items()]
    paper.rows([["Region", "Revenue", "Share"], *shares])
    for product in PRODUCTS:
        if total(year=year, product=product):
            product_chapter(paper, year, product)
    paper.chapter("Appendix: every delivery of the year", "Month by month, as the office booked it.")
    paper.rows(delivery_rows(year))
    paper.chapter(
        "Outlook",
        f"For {year + 1} we expect steady orders from harbours and more from wind parks. The largest risk is a late "
        "supplier; the second largest is a mild autumn, in which nobody thinks of storms.",
    )
    paper.save(f"annual-report-{year}.pdf")


def product_chapter(paper: Paper, year: int, product: Product) -> None:
    sold = total(year=year, product=product)
    best_month = max(range(1, 13), key=lambda month: total(year=year, product=product, month=month))
    best_region = max(REGIONS, key=lambda region: total(year=year, product=product, region=region))
    paper.chapter(
        f"{product.code} {product.name}",
        product.purpose,
        f"Revenue of the {product.name} was {sold:,}, {change(sold, total(year=year - 1, product=product))}. The best "
        f"month was {MONTHS[best_month - 1]}, and the best region was {best_region}.",
    )
    table: Rows = [["Month", *REGIONS, "Revenue"]]
    mine = [sale for sale in sales() if (sale.year, sale.product) == (year, product)]
    for month, group in groupby(mine, key=lambda sale: sale.month):
        of_month = list(group)
        units = [sale.units for sale in of_month]
        table.append([MONTHS[month - 1], *units, sum(sale.revenue for sale in of_month)])
    paper.rows(table)


def delivery_rows(year: int) -> Rows:
    rows: Rows = [["Month", "Code", "Product", "Region", "Units", "Revenue"]]
    for sale in sales():
        if sale.year == year and sale.units:
            product = sale.product
            rows.append(
                [MONTHS[sale.month - 1], product.code, product.name, sale.region, sale.units, sale.revenue],
            )
    return rows


def manual(product: Product) -> None:
    paper = Paper(f"{product.code} {product.name}: manual")
    paper.chapter("What it is for", product.purpose)
    paper.rows(
        [
            ["Property", "Value"],
            ["Measures", product.measures],
            ["Accuracy", product.accuracy],
            ["Power", product.power],
            ["Temperature", "-30 to +55 °C"],
            ["Warranty", "five years"],
        ]
    )
    paper.chapter(
        "In the box",
        f"One {product.name}, a cable of ten metres, a set of stainless bolts, the calibration sheet with the number "
        "that is also engraved on the base, and this manual. Count the bolts before you climb.",
    )
    paper.chapter("Before you begin", *chapters("handbook")["Safety at the quay"])
    paper.chapter("Mounting", product.mounting)
    for other in PRODUCTS:
        if other is not product:
            shared = f"Where the {product.name} shares a mast or a quay with a {other.name}, mind this as well."
            paper.chapter(f"Beside the {other.code}", f"{shared} {other.mounting}")
    paper.chapter("Care", product.care)
    paper.chapter(
        "When readings look wrong",
        product.fault,
        "Before you send an instrument back, look at the cable, at the earth and at the clock, in this order. Seven "
        "of ten instruments that reach our workshop leave it unchanged, with a new cable.",
    )
    rng = random.Random(product.code)
    paper.chapter("Typical calibration", "Read in the workshop against our standard, at three temperatures.")
    table: Rows = [["Step", "Standard", "at -10 °C", "at 15 °C", "at 40 °C"]]
    for step in range(1, 151):
        readings = [f"{step * 0.6 + rng.gauss(0, 0.02):.3f}" for _ in range(3)]
        table.append([str(step), f"{step * 0.6:.1f}", *readings])
    paper.rows(table)
    paper.chapter(
        "Help",
        "Call the workshop between seven and six, or write. Say the number on the base first. If a light or a fog "
        "signal fails, call at any hour: somebody will answer, and that somebody has a boat.",
    )
    paper.save(f"manual-{product.code.lower()}.pdf")


def invoice(number: int) -> None:
    rng = random.Random(number)
    customer = CUSTOMERS[number % len(CUSTOMERS)]
    paper = Paper(f"Invoice 2024-{number:04}")
    paper.paragraph(f"To {customer.name}, attention of {customer.contact}. Delivered in {rng.choice(MONTHS)} 2024.")
    lines: Rows = [["Article", "Units", "Price", "Sum"]]
    net = 0
    for product in rng.sample(PRODUCTS, rng.randint(3, 6)):
        units = rng.randint(1, 4)
        for article, price in ((product.name, product.price), (f"calibration sheet, {product.name}", 85)):
            lines.append([f"{product.code} {article}", units, price, units * price])
            net += units * price
    lines += [["Net", "", "", net], ["Tax, 20 percent", "", "", net // 5], ["To pay", "", "", net + net // 5]]
    paper.rows(lines)
    paper.chapter(
        "Terms",
        f"Please pay within thirty days and give the number 2024-{number:04}. The instruments stay our property until "
        "then.",
        "Freight is insured to the quay. Whoever lifts a wave buoy from the quay into the water insures it from there.",
    )
    paper.save(f"invoice-2024-{number:04}.pdf")


def book(name: str, title: str, content: Chapters) -> None:
    paper = Paper(title)
    for chapter, paragraphs in content.items():
        paper.chapter(chapter, *paragraphs)
    paper.save(name)


def sales_book(year: int) -> None:
    head, *rows = delivery_rows(year)
    sheets: dict[str, Rows] = {
        "Regions": [["Region", "Revenue"], *([region, total(year=year, region=region)] for region in REGIONS)],
    }
    for quarter, rows_of in groupby(rows, key=lambda row: MONTHS.index(str(row[0])) // 3 + 1):
        sheets[f"Quarter {quarter}"] = [head, *rows_of]
    workbook(f"sales-{year}.xlsx", sheets)


def price_list(year: int, factor: float) -> None:
    instruments: Rows = [["Code", "Product", "Price", "Lifeboat stations", "Measures", "Accuracy"]]
    spares: Rows = [["Code", "Part", "Price"]]
    for p in PRODUCTS:
        instruments.append([p.code, p.name, round(p.price * factor), round(p.price * 0.82), p.measures, p.accuracy])
        for number, (part, share) in enumerate(PARTS.items(), 1):
            spares.append([f"{p.code}-{number:02}", f"{part} for the {p.name}", round(p.price * share * factor, 2)])
    workbook(f"price-list-{year}.xlsx", {"Instruments": instruments, "Spare parts": spares})


def tide_station(month: int) -> None:
    rng = random.Random(month)
    first, pressure = datetime(2024, month, 1), 1012.0
    rows: Rows = [["Time", "Level m", "Pressure hPa", "Wind m/s", "Rain mm", "Salinity g/kg"]]
    for quarter in range(28 * 96):
        pressure += rng.gauss(0, 0.3) + (1012 - pressure) / 320
        level = 4.2 + 1.7 * cos(quarter / 4 / 12.42 * 2 * pi) + (1012 - pressure) / 100
        wind, rain, salt = abs(rng.gauss(6, 4)), max(0.0, rng.gauss(-1, 1)), rng.gauss(34.5, 0.4)
        figures = [round(level, 3), round(pressure, 1), round(wind, 1), round(rain, 1), round(salt, 2)]
        rows.append([str(first + timedelta(minutes=15 * quarter)), *figures])
    workbook(f"tide-station-{MONTHS[month - 1].lower()}-2024.xlsx", {"Kestrel Bay": rows})


def calibration_records() -> None:
    rng = random.Random("calibration")
    rows: Rows = [["Serial number", "Code", "Product", "Standard", "Reading", "Error", "Tested by"]]
    for serial in range(30100, 31600):
        product, standard, error = rng.choice(PRODUCTS), round(rng.uniform(1, 100), 2), round(rng.gauss(0, 0.03), 3)
        reading = round(standard + error, 3)
        rows.append([serial, product.code, product.name, standard, reading, error, rng.choice(TESTERS)])
    workbook("calibration-records-2024.xlsx", {"Records": rows})


def stock() -> None:
    rng = random.Random("stock")
    rows: Rows = [["Day", "Code", "Product", "In store", "Ordered", "Value"]]
    for day in range(1, 261):
        for product in PRODUCTS:
            count = rng.randint(0, 40)
            rows.append([day, product.code, product.name, count, rng.choice([0, 0, 10, 25]), count * product.price])
    workbook("stock-2024.xlsx", {"Daily count": rows})


def budget() -> None:
    rng = random.Random("budget")
    head: list[str | int | float] = ["Account", "Quarter 1", "Quarter 2", "Quarter 3", "Quarter 4"]
    sheets: dict[str, Rows] = {
        part: [head, *([account, *(rng.randint(3, 80) * 500 for _ in range(4))] for account in accounts)]
        for part, accounts in ACCOUNTS.items()
    }
    workbook("budget-2025.xlsx", sheets)


def customers() -> None:
    rng = random.Random("customers")
    with (DOCUMENTS / "customers.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["Customer", "Region", "Contact", "Stations", "Revenue 2024"])
        writer.writerows([*customer, rng.randint(1, 30), rng.randint(4, 190) * 1000] for customer in CUSTOMERS)


def damaged_scan() -> None:
    whole = (DOCUMENTS / "invoice-2024-0003.pdf").read_bytes()
    (DOCUMENTS / "scan-damaged.pdf").write_bytes(b"\0" * 700 + whole[700 : len(whole) // 3])


def protected_contract() -> None:
    paper = Paper("Contract with the Eastern Light and Buoy Service")
    paper.chapter("Confidential", *chapters("minutes")["20 February: the Baltic contract"])
    paper.set_encryption("quay house", user_password="lantern", permissions=AccessPermission.none())
    paper.save("contract-protected.pdf")


def protected_payroll() -> None:
    path = workbook("payroll-protected.xlsx", {"Payroll": [["Name", "Salary"], *([name, 51200] for name in TESTERS)]})
    sealed = BytesIO()
    with path.open("rb") as file:
        OOXMLFile(file).encrypt("lantern", sealed)
    path.write_bytes(sealed.getvalue())


if __name__ == "__main__":
    main()
