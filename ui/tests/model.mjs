// A model server in the form of vLLM that says what a test wants, with ids and log-probabilities.

import { createServer } from "node:http";

/** Pseudo-random, always the same. */
export function dice(seed) {
  let state = seed >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state / 2 ** 32;
  };
}

/**
 * `reply(number, request)` gives `{pieces, tool, top, hold}`: texts of tokens, a call of a tool (`{name, input}`) or none, how many
 * alternatives, and what the stream waits for after its first three tokens.
 */
export async function modelServer(reply) {
  let calls = 0;
  const ids = new Map();
  const idOf = (text) => {
    if (!ids.has(text)) ids.set(text, 1000 + ids.size);
    return ids.get(text);
  };
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (data) => (body += data));
    request.on("end", async () => {
      if (request.url.endsWith("/models")) {
        response.setHeader("content-type", "application/json");
        return response.end(JSON.stringify({ object: "list", data: [{ id: "hostile", object: "model" }] }));
      }
      const asked = JSON.parse(body);
      const said = reply(calls, asked);
      calls += 1;
      const random = dice(calls * 7919);
      const id = `chatcmpl-${calls}`;
      const prompt = JSON.stringify(asked.messages).match(/.{1,6}/gsu).map(idOf);
      const call = said.tool && { index: 0, id: `call_${calls}`, type: "function", function: { name: said.tool.name, arguments: JSON.stringify(said.tool.input) } };
      const tokens = said.pieces.map((token) => {
        const logprob = -Math.max(0.0001, -Math.log(1 - random()) * 0.4 * (random() < 0.12 ? 6 : 1));
        return { token, logprob, bytes: [...Buffer.from(token)], top_logprobs: Array.from({ length: said.top ?? 0 }, (_, at) => ({ token: at === 0 ? token : `${token}~${at}`, logprob: at === 0 ? logprob : logprob - at, bytes: [] })) };
      });
      const usage = { prompt_tokens: prompt.length, completion_tokens: tokens.length, total_tokens: prompt.length + tokens.length };
      const base = { id, created: 1, model: asked.model };
      if (!asked.stream) {
        response.setHeader("content-type", "application/json");
        return response.end(JSON.stringify({ ...base, object: "chat.completion", prompt_token_ids: prompt, usage, choices: [{ index: 0, message: { role: "assistant", content: said.pieces.join(""), tool_calls: call ? [call] : [] }, logprobs: { content: tokens }, token_ids: said.pieces.map(idOf), finish_reason: call ? "tool_calls" : "stop" }] }));
      }
      response.setHeader("content-type", "text/event-stream");
      const send = (chunk) => response.write(`data: ${JSON.stringify({ ...base, object: "chat.completion.chunk", ...chunk })}\n\n`);
      send({ prompt_token_ids: prompt, choices: [{ index: 0, delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null }] });
      for (let at = 0, end; at < tokens.length; at = end) {
        end = at + (said.hold && at === 0 ? 3 : 50);
        const some = tokens.slice(at, end);
        send({ choices: [{ index: 0, delta: { content: some.map((one) => one.token).join("") }, logprobs: { content: some }, token_ids: some.map((one) => idOf(one.token)), finish_reason: null }] });
        if (at === 0) await said.hold;
      }
      send({ choices: [{ index: 0, delta: call ? { tool_calls: [call] } : {}, logprobs: null, token_ids: [], finish_reason: call ? "tool_calls" : "stop" }] });
      send({ choices: [], usage });
      response.end("data: [DONE]\n\n");
      return undefined;
    });
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  // A test that fails leaves it open.
  server.unref();
  return { url: `http://127.0.0.1:${server.address().port}/v1`, calls: () => calls, close: () => new Promise((done) => server.close(done) && server.closeAllConnections()) };
}
