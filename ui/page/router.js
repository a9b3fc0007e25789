// Addresses: everything that is shown has its own, which can be kept, shared and reloaded.

import { ROOT } from "./api.js";

const BASE = new URL("web/", ROOT).pathname;

/** The address of a view. */
export function to(view = "", words = {}) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(words)) {
    if (value !== undefined && value !== null && value !== "") search.set(key, value);
  }
  const text = search.toString();
  return BASE + view.split("/").map(encodeURIComponent).join("/") + (text ? `?${text}` : "");
}

/** The view of an address, without what stands before all of them. */
export function here() {
  const path = location.pathname;
  return (path.startsWith(BASE) ? path.slice(BASE.length) : "").replace(/\/$/, "");
}

let show = () => {};

/** Goes to an address of this page. */
export function go(address, { replace = false } = {}) {
  if (address !== location.pathname + location.search) {
    history[replace ? "replaceState" : "pushState"](null, "", address);
  }
  show();
}

/** Changes words of the address without showing another view. */
export function setWords(words) {
  const search = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(words)) {
    if (value === undefined || value === null || value === "") search.delete(key);
    else search.set(key, value);
  }
  const text = search.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
}

export function words() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

/** Calls `work` with each address that is gone to, and now. */
export function onAddress(work) {
  show = work;
  window.addEventListener("popstate", work);
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target.closest?.("a[href]");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (!link.pathname.startsWith(BASE)) return;
    if (link.hash && link.pathname === location.pathname) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
  work();
}
