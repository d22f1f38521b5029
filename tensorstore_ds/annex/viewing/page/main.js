// The page: reads its settings from view.json beside it, or the address of a store from ?store=URL.
import { el } from "./elements.js";
import { Source, httpTransport } from "./source.js";
import { Viewer } from "./viewer.js";

const place = document.getElementById("viewer");
const JSON_TYPE = { "Content-Type": "application/json" };

async function settings() {
  const wanted = new URLSearchParams(location.search).get("store");
  if (wanted) return { store: new URL(wanted, location.href).href, title: wanted };
  const answer = await fetch("view.json", { cache: "no-cache" });
  if (!answer.ok) throw new Error("view.json: not found beside this page. Add ?store=URL to the address, or use tsds view.");
  return answer.json();
}

const getJson = async (path) => {
  const answer = await fetch(path, { cache: "no-cache" });
  return answer.ok ? answer.json() : null;
};

async function start() {
  if (location.protocol === "file:") throw new Error("A browser reads no files from here. Run: python -m http.server, in this folder.");
  const { store, title, tags, findings, runs, notes, path, view, rows } = await settings();
  const source = store && new Source(httpTransport(new URL(store, location.href).href));
  const server = tags && {
    async read() {
      const answer = await fetch(tags, { cache: "no-cache" });
      if (!answer.ok) throw new Error(String(answer.status));
      return answer.json();
    },
    async write(content) {
      const answer = await fetch(tags, { method: "PUT", headers: JSON_TYPE, body: JSON.stringify(content) });
      if (!answer.ok) throw new Error(`the tags could not be saved: ${answer.status}`);
    },
  };
  const viewer = new Viewer(place, {
    source, server, title, notes, path, view, rows,
    findings: findings ? await getJson(findings) : null,
    runs: (runs ?? []).map((run) => ({ name: run.name, read: async () => (await fetch(run.url, { cache: "no-cache" })).text() })),
    address: { read: () => location.hash.slice(1), write: (text) => history.replaceState(null, "", `#${text}`) },
  });
  if (source) document.title = `${title ?? "store"} - tensorstore-ds`;
  window.addEventListener("hashchange", () => viewer.restore());
  await viewer.open();
}

start().catch((error) => place.replaceChildren(el("div", { class: "viewer" }, el("p", { class: "error", role: "alert" }, error.message))));
