# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes the Parquet files of this folder from the CSV files that README.md names: ``reduce.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

COLUMNS = {
    "create_s": pl.Int32,
    "delete_lo_s": pl.Int32,
    "delete_hi_s": pl.Int32,
    "cores": pl.UInt8,
    "memory_gb": pl.Float32,
}
FILES = {
    "azure-v1-days-1-20": "azure_v1_day1-20_arrivals_only.csv.gz",
    "azure-v1-days-21-30": "azure_v1_day21-30.csv.gz",
}


def main() -> None:
    """Reads the CSV files in the folder that is named, and writes here."""
    folder = Path(sys.argv[1])
    for name, source in FILES.items():
        frame = pl.read_csv(folder / source)
        kept = frame.select(pl.col(column).cast(kind) for column, kind in COLUMNS.items() if column in frame.columns)
        kept.write_parquet(Path(__file__).with_name(f"{name}.parquet"), compression="zstd", compression_level=19)


if __name__ == "__main__":
    main()
