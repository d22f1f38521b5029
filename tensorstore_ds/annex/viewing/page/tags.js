// Tags of rows, such as "wrong", and rows to take along: as files, and as the line for a terminal.
import { download } from "./elements.js";

/** Tags of a store: `{tag: {split: rows}}`, kept by the server beside the store, else in this browser. */
export class Tags {
  constructor(digest, server) {
    Object.assign(this, { digest, server });
    this.tags = new Map();
  }

  /** Read them. Tags of another state of the store are not used: its rows may be other samples now. */
  async load() {
    let found = null;
    this.failed = null;
    try {
      found = this.server ? await this.server.read() : JSON.parse(localStorage.getItem(this.place) ?? "null");
    } catch (error) {
      this.failed = error; // the page opens without them, and sets none
    }
    this.isOther = Boolean(found?.sha256) && found.sha256 !== this.digest;
    const isRows = (rows) => Array.isArray(rows) && rows.every(Number.isInteger);
    const all = this.isOther ? [] : Object.entries(found?.tags ?? {});
    this.tags = new Map(all.map(([tag, splits]) => [tag, new Map(Object.entries(splits ?? {}).filter(([, rows]) => isRows(rows)).map(([split, rows]) => [split, new Set(rows)]))]));
    return this;
  }

  get place() {
    return `tsds-tags-${this.digest}`;
  }

  names() {
    return [...this.tags.keys()];
  }

  has(tag, split, row) {
    return this.tags.get(tag)?.get(split)?.has(row) ?? false;
  }

  rows(tag, split) {
    return this.tags.get(tag)?.get(split) ?? new Set();
  }

  /** Set or remove a tag of rows. They are read again before, since another page may have set some. */
  async set(tag, split, rows, isOn) {
    await this.load();
    if (this.failed) throw new Error(`the tags could not be read: ${this.failed.message}`);
    if (this.isOther) throw new Error("the tags beside this store are of another state of it: move that file away");
    if (!this.tags.has(tag)) this.tags.set(tag, new Map());
    const splits = this.tags.get(tag);
    if (!splits.has(split)) splits.set(split, new Set());
    for (const row of rows) isOn ? splits.get(split).add(row) : splits.get(split).delete(row);
    if (!splits.get(split).size) splits.delete(split);
    if (!splits.size) this.tags.delete(tag);
    const listed = [...this.tags].map(([name, parts]) => [name, Object.fromEntries([...parts].map(([part, set]) => [part, [...set].sort((a, b) => a - b)]))]);
    const content = { sha256: this.digest, tags: Object.fromEntries(listed) };
    if (this.server) await this.server.write(content);
    else localStorage.setItem(this.place, JSON.stringify(content));
  }
}

/** Save rows as the JSON that `tsds filter --without` and `tsds erase --rows` take. */
export function saveRows(split, rows, digest) {
  download("rows.json", `${JSON.stringify({ sha256: digest, drop: { [split]: rows } })}\n`, "application/json");
}

/** A path as a word of a shell. */
function quoted(text) {
  return /^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** The line that writes a store without the rows of rows.json. */
export function filterLine(store) {
  return `tsds filter ${quoted(store)} ${quoted(store.replace(/(\.tsds)?(\.zip)?\/*$/, ""))}-rest.tsds --without rows.json`;
}
