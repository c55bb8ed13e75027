"""Profiles a table: what its columns hold, what is missing, what stands out. Prints Markdown."""

import argparse
import csv
import json
import sys
import warnings
from pathlib import Path

import pandas as pd

SHOWN_MAX = 5
CELL_CHARS_MAX = 40
COLUMNS_MAX = 200


def separator(path, kind):
    """What stands between the columns: pandas would take a letter where there is one column."""
    if kind == ".tsv":
        return "\t"
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        head = next((line for line in file if line.strip()), "")
    try:
        return csv.Sniffer().sniff(head, ",;\t| " if kind == ".txt" else ",;\t|").delimiter
    except csv.Error:
        return ","


def read(path, rows, sheet):
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv", ".txt"):
        return pd.read_csv(path, sep=separator(path, kind), engine="python", nrows=rows)
    if kind in (".jsonl", ".ndjson"):
        return pd.read_json(path, lines=True, nrows=rows)
    if kind == ".json":
        return pd.json_normalize(json.loads(path.read_text())).head(rows)
    if kind == ".parquet":
        return pd.read_parquet(path).head(rows)
    if kind in (".xlsx", ".xlsm"):
        return pd.read_excel(path, sheet_name=sheet or 0, nrows=rows)
    sys.exit(f"{path.name}: use .csv, .tsv, .json, .jsonl, .parquet or .xlsx")


def looks_like(column):
    """What a text column holds in truth, if nearly all of its values say so."""
    sample = column.dropna().astype(str).head(1000)
    if sample.empty:
        return None
    numbers = pd.to_numeric(sample.str.replace(r"[\s,%$€£]", "", regex=True), errors="coerce")
    if numbers.notna().mean() > 0.95:
        return "number"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dates = pd.to_datetime(sample, errors="coerce")
    return "date" if dates.notna().mean() > 0.95 else None


def plain(value):
    text = " ".join(str(value).split()).replace("|", "\\|")
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def profile_column(column):
    texts = column.dropna().map(str)
    about = {
        "type": str(column.dtype),
        "missing": int(column.isna().sum()),
        "distinct": int(texts.nunique()),
        "most_common": [[plain(value), int(count)] for value, count in texts.value_counts().head(SHOWN_MAX).items()],
    }
    if pd.api.types.is_bool_dtype(column):
        return about
    if pd.api.types.is_numeric_dtype(column):
        values = column.dropna().astype(float)
        if not values.empty:
            low, middle, high = values.quantile([0.25, 0.5, 0.75])
            reach = 1.5 * (high - low)
            outside = (values < low - reach) | (values > high + reach)
            about |= {"min": values.min(), "median": middle, "mean": values.mean(), "max": values.max()}
            about["outliers"] = int(outside.sum())
    elif pd.api.types.is_datetime64_any_dtype(column):
        about |= {"min": str(column.min()), "max": str(column.max())}
    elif (kind := looks_like(column)) is not None:
        about["looks_like"] = kind
    return about


def correlations(table):
    numbers = table.select_dtypes("number")
    if numbers.shape[1] < 2:
        return []
    matrix, names = numbers.corr(), list(numbers.columns)
    pairs = [(a, b, matrix.loc[a, b]) for i, a in enumerate(names) for b in names[i + 1 :]]
    strong = [pair for pair in pairs if abs(pair[2]) >= 0.5]
    strong.sort(key=lambda pair: -abs(pair[2]))
    return [[str(a), str(b), round(float(value), 3)] for a, b, value in strong[:10]]


def markdown(name, profile):
    rows = profile["rows"]
    lines = [f"# {name}", "", f"{rows} rows, {len(profile['columns'])} columns, {profile['duplicates']} duplicates", ""]
    lines += ["| column | type | missing | distinct | values | notes |", "| --- | --- | --- | --- | --- | --- |"]
    for column, about in profile["columns"].items():
        share = f"{about['missing']} ({about['missing'] / max(rows, 1):.0%})"
        common = ", ".join(f"{value} ({count})" for value, count in about["most_common"][:3])
        if "median" in about:
            common = f"{about['min']:g} … {about['median']:g} … {about['max']:g}, mean {about['mean']:g}"
        elif "min" in about:
            common = f"{about['min']} … {about['max']}"
        notes = [f"looks like {about['looks_like']}"] if "looks_like" in about else []
        notes += [f"{about['outliers']} outliers"] if about.get("outliers") else []
        cells = (plain(column), about["type"], share, about["distinct"], common, "; ".join(notes))
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    if profile["correlations"]:
        lines += ["", "Correlations: " + "; ".join(f"{a} and {b} {value:+}" for a, b, value in profile["correlations"])]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sheet")
    given = parser.parse_args()
    table = read(given.file, given.rows, given.sheet)
    columns = table.iloc[:, :COLUMNS_MAX]
    profile = {
        "rows": len(table),
        "duplicates": int(table.astype(str).duplicated().sum()),
        "columns": {str(name): profile_column(columns[name]) for name in columns},
        "correlations": correlations(columns),
    }
    text = markdown(given.file.name, profile)
    print(text, end="")
    if given.out:
        given.out.with_name(given.out.name + ".md").write_text(text)
        given.out.with_name(given.out.name + ".json").write_text(json.dumps(profile, indent=1, default=str))


if __name__ == "__main__":
    main()
