// Numbers and times as people read them.

export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (minutes < 60) return `${minutes}m ${two(seconds % 60)}s`;
  return `${Math.floor(minutes / 60)}h ${two(minutes % 60)}m`;
}

export function count(number) {
  if (number === null || number === undefined) return "–";
  return number.toLocaleString("en-US");
}

/** Short: 12.3k. */
export function brief(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10000) return number.toLocaleString("en-US");
  if (number < 1e6) return `${(number / 1e3).toFixed(number < 1e5 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(2)}M`;
}

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  if (number < 1024 * 1024) return `${(number / 1024).toFixed(1)} KiB`;
  return `${(number / 1024 / 1024).toFixed(1)} MiB`;
}

export function reward(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) < 0.001 ? value.toExponential(1) : String(Number(value.toFixed(3)));
}

export function number(value, digits = 3) {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : value.toFixed(digits);
}

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  if (value >= 99.95 || value === 0) return `${value.toFixed(0)}%`;
  if (value >= 1) return `${value.toFixed(1)}%`;
  return value >= 0.01 ? `${value.toFixed(2)}%` : "<0.01%";
}

export function ago(unixMs, now = Date.now()) {
  const seconds = Math.max(0, (now - unixMs) / 1000);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(unixMs).toISOString().slice(0, 10);
}

export function moment(unixMs) {
  if (!unixMs) return "–";
  const date = new Date(unixMs);
  const pad = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** The end of an id, which tells rollouts of one day apart; their beginnings are times. */
export function shortId(id) {
  return id ? id.slice(-8) : "–";
}

/** The title of a rollout as lists have it: its instruction's first line, which is cut after so many characters. */
export function title(text) {
  return [...text].length < 120 ? text : `${text}…`;
}

/** `prompt_ids_missing` as people write it. */
export function words(name) {
  return name === null || name === undefined ? "–" : String(name).replaceAll("_", " ");
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
