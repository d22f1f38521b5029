"""zarrs, written in Rust, as the codecs of zarr-python: ``python zarrs_python.py STORE STAGE``."""

import sys

import zarr
import zarrs  # noqa: F401  # makes its pipeline known
from zarr_python import main

if __name__ == "__main__":
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    main(sys.argv[1])
