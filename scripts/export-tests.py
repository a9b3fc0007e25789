"""Loads exports of rollouts in all dialects with `datasets`, and compares what is read with what was written; damages them, and
sees that each damage is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROLLOUTS = 2

DIALECTS = ("chat_completions", "messages", "responses", "generate_content")

# What of its request cannot be carried over.
UNTRANSLATED = {
    "chat_completions": [],
    "messages": ["context_management"],
    "responses": ["client_metadata"],
    "generate_content": ["safetySettings"],
}


def main(dressage: str) -> None:
    with tempfile.TemporaryDirectory(prefix="dressage-export-") as folder:
        place = Path(folder)
        # What runs in sandboxes of root must be able to pass, and what `datasets` keeps goes with the folder.
        place.chmod(0o755)
        os.environ |= {"DRESSAGE_DATA_DIR": str(place / "data"), "HF_HOME": str(place / "hf"), "HF_HUB_OFFLINE": "1"}
        for _ in range(ROLLOUTS):
            run(dressage, "demo")
        for dialect in DIALECTS:
            rollout_in(dialect, dressage, place)
        for shape in ("native", "trl", "verl", "chat", "atif"):
            check(dressage, place, shape)
        damage_is_found(dressage, place)
        taken_in_elsewhere(dressage, place)
    print("exports load, and agree")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def rollout_in(dialect: str, dressage: str, place: Path) -> None:
    """A rollout of a small agent that asks twice, with what was answered handed back."""
    task = place / f"{dialect}.toml"
    program = json.dumps((Path(__file__).parent / "dialect-agent.py").read_text())
    task.write_text(f"""
id = "{dialect}"
instruction = "look"
verify = ["true"]
files = {{ "agent.py" = {program} }}
[agent]
name = "command"
[agent.config]
program = "python3"
args = ["agent.py", "{dialect}"]
dialect = "{dialect}"
""")
    told = json.loads(run(dressage, "run", str(task), "--endpoint", "demo", "--json").splitlines()[-1])
    expect(told["reward"]["value"] == 1.0, f"{dialect}: {told}")
    shown = run(dressage, "show", told["id"])
    lost = UNTRANSLATED[dialect]
    said = f"calls 0-1: not carried over to chat completions: {', '.join(lost)}"
    expect((said in shown) == bool(lost), f"{dialect}: {shown}")


def check(dressage: str, place: Path, shape: str) -> None:
    from datasets import load_dataset

    lines, packed, table = (place / f"{shape}.{end}" for end in ("jsonl", "jsonl.zst", "parquet"))
    for output in (lines, packed, table):
        run(dressage, "export", "--shape", shape, "--output", str(output))
        run(dressage, "validate", str(output))
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    expect(len(written) >= ROLLOUTS, f"{shape}: {len(written)} rows")

    from_parquet = load_dataset("parquet", data_files=str(table), split="train")
    if shape in ("native", "atif"):
        # In Parquet a row has the document as text; as lines it is the document.
        expect([json.loads(row["document"]) for row in from_parquet] == written, f"{shape}: Parquet differs from the lines")
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
    if shape == "chat":
        told = {row["dialect"]: row["untranslated"] for row in written}
        expect(told == UNTRANSLATED, f"chat: {told}")
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
    elif shape == "atif":
        from harbor.models.trajectories import Trajectory

        trajectory = Trajectory.model_validate(row)
        calls = [step for step in trajectory.steps if step.llm_call_count == 1]
        expect(len(calls) > 1, "atif: no calls")
        if row["agent"]["name"] == "opencode":
            expect(any(step.observation for step in calls), "atif: no tool gave anything back")
        for step in calls:
            metrics = step.metrics
            expect(len(metrics.completion_token_ids) == len(metrics.logprobs) == metrics.completion_tokens, "atif: lengths differ")
            expect(len(metrics.prompt_token_ids) == metrics.prompt_tokens, "atif: the prompt is not whole")
        expect(trajectory.extra["reward"] == 1.0, "atif: no reward")
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


def damage_is_found(dressage: str, place: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    kinds = set()
    for shape, damages in DAMAGES.items():
        line = json.loads((place / f"{shape}.jsonl").read_text().splitlines()[-1])
        table = pyarrow.parquet.read_table(place / f"{shape}.parquet")
        for kind, damage in damages:
            row = json.loads(json.dumps(line))
            damage(row)
            lines, parquet = place / "damaged.jsonl", place / "damaged.parquet"
            lines.write_text(json.dumps(row) + "\n")
            if shape in ("native", "atif"):
                row = table.slice(table.num_rows - 1).to_pylist()[0] | {"document": json.dumps(row)}
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row], schema=table.schema), parquet, compression="zstd")
            for file in (lines, parquet):
                done = subprocess.run([dressage, "validate", str(file)], capture_output=True, text=True, check=False)
                told = f"{shape} as {file.suffix}, {kind}: ended with {done.returncode}\n{done.stdout}{done.stderr}"
                expect(done.returncode == 5 and f": {kind}: " in done.stdout, told)
            kinds.add(kind)
    print(f"{sum(map(len, DAMAGES.values()))} damages of {len(kinds)} kinds are found in lines and in Parquet")


def within(of: str, change):
    """A change of what a member has as JSON text."""

    def damage(row: dict) -> None:
        value = json.loads(row[of])
        change(value)
        row[of] = json.dumps(value)

    return damage


def put(*path, value=None, by=None):
    """Puts something in a place: a value, or what is made of the one there."""

    def damage(row) -> None:
        *way, last = path
        for step in way:
            row = row[step]
        row[last] = by(row[last]) if by else value

    return damage


def without_first(mask: list) -> list:
    at = mask.index(1)
    return [*mask[:at], 0, *mask[at + 1 :]]


DAMAGES = {
    "native": [
        ("unreadable", lambda row: row.pop("calls")),
        ("unknown_schema", put("schema_version", value=99)),
        ("content_changed", put("contents", 0, "text", by=lambda text: text + " ")),
        ("content_missing", put("contents", by=lambda contents: contents[:-1])),
        ("base_missing", put("calls", by=lambda calls: calls[1:])),
        ("duplicate", put("calls", 1, "meta", "index", value=0)),
        ("lengths_differ", put("sequences", 0, "logprobs", by=lambda logprobs: logprobs[:-1])),
        ("logprob_positive", put("calls", 0, "completions", 0, "logprobs", 0, value=0.5)),
        ("usage_differs", put("calls", 0, "meta", "usage", "completion_tokens", by=lambda count: count + 1)),
        ("tokens_differ", put("sequences", 0, "token_ids", -1, by=lambda token: token + 1)),
        ("logprobs_differ", put("sequences", 0, "logprobs", -1, by=lambda logprob: logprob - 1)),
        ("mask_invalid", put("sequences", 0, "loss_mask", 0, value=2)),
        ("mask_outside_turns", put("sequences", 0, "loss_mask", 0, value=1)),
        ("mask_incomplete", put("sequences", 0, "loss_mask", by=without_first)),
        ("not_trained", put("sequences", value=[])),
        ("outcome", put("outcome", value=None)),
    ],
    "trl": [
        ("lengths_differ", put("turns", by=lambda turns: turns + 1)),
        ("usage_differs", within("training_trace", put("turns", 0, "metadata", "usage_completion_tokens", value=0))),
        ("logprob_positive", within("training_trace", put("turns", 0, "per_token_logps", 0, value=1.5))),
        ("duplicate", within("training_trace", lambda trace: trace["turns"][1].update(node_id=trace["turns"][0]["node_id"]))),
        ("mask_outside_turns", within("training_trace", put("turns", 0, "loss_mask", 0, value=1))),
        ("unreadable", put("trace_entries", value="[")),
    ],
    "verl": [
        ("lengths_differ", put("response_mask", by=lambda mask: mask[:-1])),
        ("logprob_positive", put("response_logprobs", 0, value=0.5)),
        ("mask_invalid", put("response_mask", 0, value=2)),
        ("mask_incomplete", put("response_mask", by=without_first)),
        ("turns_misplaced", put("turns", -1, "end", by=lambda end: end - 1)),
        ("mask_sum", put("response_mask", by=lambda mask: [0] * len(mask))),
        ("unknown_schema", put("schema", value="dressage.atari")),
    ],
    "chat": [
        ("messages", put("messages", by=lambda messages: messages[:-1])),
        ("messages", put("messages", 0, "role", value=None)),
        ("unreadable", put("tools", value="{")),
    ],
    "atif": [
        ("messages", put("steps", 1, "step_id", value=7)),
        ("lengths_differ", put("steps", by=lambda steps: steps[:-1])),
        ("logprob_positive", lambda row: calls_of(row)[0]["metrics"]["logprobs"].__setitem__(0, 0.5)),
        ("usage_differs", lambda row: calls_of(row)[0]["metrics"].update(completion_tokens=0)),
        ("trained_twice", lambda row: calls_of(row)[1]["extra"].update(call=calls_of(row)[0]["extra"]["call"])),
        ("unreadable", put("unheard_of", value=1)),
        ("unknown_schema", put("schema_version", value="ATIF-v9.0")),
    ],
}


def calls_of(row: dict) -> list[dict]:
    return [step for step in row["steps"] if "metrics" in step]


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"error: {what}")


if __name__ == "__main__":
    main(sys.argv[1])
