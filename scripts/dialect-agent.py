"""An agent that asks twice in a dialect, and hands back what was answered. usage: dialect-agent.py DIALECT"""

import json
import os
import sys
import urllib.request

TOOL = {"type": "object", "properties": {"place": {"type": "string"}}}


def ask(path: str, body: dict, **headers: str) -> dict:
    headers = {name.replace("_", "-"): value for name, value in headers.items()} | {"content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def chat_completions(key: str, model: str) -> None:
    function = {"name": "look", "description": "Looks.", "parameters": TOOL}
    body = {"model": model, "messages": [{"role": "user", "content": "look"}], "tools": [{"type": "function", "function": function}]}
    for _ in range(2):
        reply = ask("/v1/chat/completions", body, authorization=f"Bearer {key}")["choices"][0]["message"]
        body["messages"].append(reply)
        for call in reply.get("tool_calls") or []:
            body["messages"].append({"role": "tool", "tool_call_id": call["id"], "content": "a.txt"})
        body["messages"].append({"role": "user", "content": "and now?"})


def messages(key: str, model: str) -> None:
    body = {"model": model, "max_tokens": 500, "messages": [{"role": "user", "content": "look"}], "context_management": {"edits": []}}
    body["tools"] = [{"name": "look", "description": "Looks.", "input_schema": TOOL}]
    for _ in range(2):
        reply = ask("/v1/messages", body, x_api_key=key, anthropic_version="2023-06-01")["content"]
        body["messages"].append({"role": "assistant", "content": reply})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "a.txt"} for block in reply if block["type"] == "tool_use"
        ]
        body["messages"].append({"role": "user", "content": [*results, {"type": "text", "text": "and now?"}]})


def responses(key: str, model: str) -> None:
    body = {"model": model, "input": [{"role": "user", "content": "look"}], "store": False, "client_metadata": {"a": "b"}}
    body["tools"] = [{"type": "function", "name": "look", "description": "Looks.", "parameters": TOOL}]
    for _ in range(2):
        reply = ask("/v1/responses", body, authorization=f"Bearer {key}")["output"]
        body["input"].extend(reply)
        for item in reply:
            if item["type"] == "function_call":
                body["input"].append({"type": "function_call_output", "call_id": item["call_id"], "output": "a.txt"})
        body["input"].append({"role": "user", "content": "and now?"})


def generate_content(key: str, model: str) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "look"}]}], "safetySettings": [{"category": "X", "threshold": "Y"}]}
    body["tools"] = [{"functionDeclarations": [{"name": "look", "description": "Looks.", "parametersJsonSchema": TOOL}]}]
    for _ in range(2):
        reply = ask(f"/v1beta/models/{model}:generateContent", body, x_goog_api_key=key)["candidates"][0]["content"]
        body["contents"].append(reply)
        results = []
        for part in reply["parts"]:
            if call := part.get("functionCall"):
                results.append({"functionResponse": {"id": call.get("id"), "name": call["name"], "response": {"output": "a.txt"}}})
        body["contents"].append({"role": "user", "parts": [*results, {"text": "and now?"}]})


if __name__ == "__main__":
    globals()[sys.argv[1]](os.environ["OPENAI_API_KEY"], os.environ["OPENAI_MODEL"])
    print("asked twice")
