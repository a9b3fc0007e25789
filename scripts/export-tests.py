"""Loads exports of real rollouts with `datasets`, and compares what is read with what was written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROLLOUTS = 2


def main(dressage: str) -> None:
    with tempfile.TemporaryDirectory(prefix="dressage-export-") as folder:
        place = Path(folder)
        # What runs in sandboxes of root must be able to pass, and what `datasets` keeps goes with the folder.
        place.chmod(0o755)
        os.environ |= {"DRESSAGE_DATA_DIR": str(place / "data"), "HF_HOME": str(place / "hf"), "HF_HUB_OFFLINE": "1"}
        for _ in range(ROLLOUTS):
            run(dressage, "demo")
        for shape in ("native", "trl", "verl", "chat"):
            check(dressage, place, shape)
        taken_in_elsewhere(dressage, place)
    print("exports load, and agree")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def check(dressage: str, place: Path, shape: str) -> None:
    from datasets import load_dataset

    lines, packed, table = (place / f"{shape}.{end}" for end in ("jsonl", "jsonl.zst", "parquet"))
    for output in (lines, packed, table):
        run(dressage, "export", "--shape", shape, "--output", str(output))
        run(dressage, "validate", str(output))
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    expect(len(written) >= ROLLOUTS, f"{shape}: {len(written)} rows")

    from_parquet = load_dataset("parquet", data_files=str(table), split="train")
    if shape == "native":
        # In Parquet a row has the document as text; as lines it is the document.
        expect([json.loads(row["document"]) for row in from_parquet] == written, "native: Parquet differs from the lines")
    else:
        expect(list(from_parquet) == written, f"{shape}: Parquet differs from the lines")
        from_lines = load_dataset("json", data_files=str(lines), split="train")
        expect(list(from_lines) == written, f"{shape}: datasets reads the lines otherwise than they are written")
        from_packed = load_dataset("json", data_files=str(packed), split="train")
        expect(list(from_packed) == written, f"{shape}: datasets reads compressed lines otherwise")
        streamed = load_dataset("parquet", data_files=str(table), split="train", streaming=True)
        expect(list(streamed) == written, f"{shape}: datasets streams Parquet otherwise")
    for row in written:
        meaning(shape, row)
    print(f"{shape}: {len(written)} rows")


def meaning(shape: str, row: dict) -> None:
    """What a trainer relies on."""
    if shape == "verl":
        length = len(row["response_ids"])
        expect(len(row["response_mask"]) == len(row["response_logprobs"]) == length > 0, "verl: lengths differ")
        expect(row["reward"] == 1.0 and sum(row["response_mask"]) > 0, "verl: no reward, or nothing trained")
    elif shape == "chat":
        expect(row["messages"][-1]["role"] == "assistant", "chat: the last message is not the assistant's")
        expect(len(json.loads(row["tools"])) > 0, "chat: no tools")
    elif shape == "trl":
        from dressage.openenv.standalone import TrainingTrace

        trace = TrainingTrace.model_validate_json(row["training_trace"])
        expect(len(trace.turns) == row["turns"] > 0, "trl: no turns")
        expect(len(json.loads(row["trace_entries"])) >= row["turns"], "trl: entries are missing")


def taken_in_elsewhere(dressage: str, place: Path) -> None:
    before = (place / "native.jsonl").read_bytes()
    os.environ["DRESSAGE_DATA_DIR"] = str(place / "elsewhere")
    run(dressage, "import", str(place / "native.jsonl.zst"))
    run(dressage, "validate")
    run(dressage, "export", "--output", str(place / "again.jsonl"))
    expect((place / "again.jsonl").read_bytes() == before, "what was taken in elsewhere is exported otherwise there")


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"error: {what}")


if __name__ == "__main__":
    main(sys.argv[1])
