// A store: its manifest, and the columns of its splits, as formats/v1/spec.md has them.
import { decompress } from "./zstd.js";

const TYPES = {
  uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array,
  uint64: BigUint64Array, int64: BigInt64Array, float16: Uint16Array, float32: Float32Array, float64: Float64Array,
};
const MOST_BYTES = 2 ** 30;
const NAME = /^[a-z0-9_][a-z0-9_-]{0,63}$/;

/** Open the store of a source; an Error has one line that says what is wrong. */
export async function openStore(source) {
  const bytes = await source.file("zarr.json");
  let attributes;
  try {
    attributes = JSON.parse(new TextDecoder().decode(bytes)).attributes;
  } catch {
    throw new Error("zarr.json: expected JSON, found other text. This is no store.");
  }
  const manifest = attributes?.tsds;
  if (typeof manifest?.format_version !== "string") throw new Error("zarr.json: expected the attribute tsds, found none. This is no store.");
  if (!/^1\.\d{1,4}$/.test(manifest.format_version)) {
    throw new Error(`zarr.json: expected format 1, found ${manifest.format_version}. Use a newer version of this page.`);
  }
  if (manifest.requires?.length) throw new Error(`zarr.json: this store requires ${manifest.requires}. Use a newer version of this page.`);
  await checkDigest(bytes, String(attributes.tsds_sha256));
  for (const name of [...Object.keys(manifest.fields), ...Object.keys(manifest.splits)]) {
    if (!NAME.test(name)) throw new Error(`zarr.json: ${JSON.stringify(name)} is no name.`);
  }
  const splits = Object.keys(manifest.splits).map((name) => [name, new Split(source, manifest, name)]);
  return { manifest, digest: attributes.tsds_sha256, splits: new Map(splits) };
}

/** The digest is of the file with zeros in its place. Browsers hash only on pages that are secure or local. */
async function checkDigest(bytes, digest) {
  if (!globalThis.crypto?.subtle) return;
  const zeroed = bytes.slice();
  const letters = new TextEncoder().encode(digest);
  let at = -1;
  do at = zeroed.indexOf(letters[0], at + 1);
  while (at >= 0 && !letters.every((letter, i) => zeroed[at + i] === letter));
  if (at >= 0) zeroed.fill(48, at, at + letters.length);
  const hashed = new Uint8Array(await crypto.subtle.digest("SHA-256", zeroed));
  if ([...hashed].map((byte) => byte.toString(16).padStart(2, "0")).join("") !== digest) {
    throw new Error("zarr.json: expected another digest. This file was changed or is damaged.");
  }
}

const product = (shape) => shape.reduce((all, length) => all * length, 1);

/** Numbers of any type as a typed array without BigInt. */
function plain(bytes, dtype) {
  const type = TYPES[dtype];
  const aligned = bytes.byteOffset % type.BYTES_PER_ELEMENT ? bytes.slice() : bytes;
  const found = new type(aligned.buffer, aligned.byteOffset, aligned.byteLength / type.BYTES_PER_ELEMENT);
  if (dtype === "int64" || dtype === "uint64") return Float64Array.from(found, Number);
  return dtype === "float16" ? Float32Array.from(found, half) : found;
}

function half(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : (sign * 2 ** -14 * fraction) / 1024;
}

/** An array of a shard: n rows of a shape. */
class ShardArray {
  constructor(split, shard, path, n, { dtype, shape = [], layout }) {
    Object.assign(this, { split, shard, path: `${shard.path}/${path}`, name: path, n, dtype, shape });
    this.source = split.source;
    this.layout = layout ?? split.manifest.layout;
    this.rowBytes = product(shape) * TYPES[dtype].BYTES_PER_ELEMENT;
    this.file = `${this.path}/c${"/0".repeat(shape.length + 1)}`;
    const { chunk_size: wantedBytes } = split.manifest;
    const wanted = Math.max(1, Math.floor((n * this.rowBytes + Math.floor(wantedBytes / 2)) / wantedBytes));
    this.chunkRows = n ? Math.ceil(n / Math.min(wanted, n)) : 1;
    this.chunks = Math.ceil(n / this.chunkRows);
  }

  /** The bytes of rows; `few` of them are read by blocks that are kept. */
  async bytes(start, stop, few = false) {
    if (start < 0 || start > stop || stop > this.n) throw new Error(`${this.path}: no rows ${start} to ${stop}.`);
    const size = (stop - start) * this.rowBytes;
    if (size > MOST_BYTES) throw new Error(`${this.path}: ${size} bytes are more than this page reads at a time.`);
    if (!size) return new Uint8Array(0);
    if (this.layout === "memmap") {
      const from = start * this.rowBytes;
      if (few) return this.source.near(this.file, from, from + size, this.n * this.rowBytes);
      return this.source.read(this.file, from, from + size);
    }
    const out = new Uint8Array(size);
    const first = Math.floor(start / this.chunkRows);
    const last = Math.floor((stop - 1) / this.chunkRows);
    await Promise.all(Array.from({ length: last - first + 1 }, async (_, i) => {
      const at = (first + i) * this.chunkRows;
      const from = Math.max(start, at);
      const to = Math.min(stop, at + this.chunkRows);
      const chunk = await this.chunk(first + i);
      out.set(chunk.subarray((from - at) * this.rowBytes, (to - at) * this.rowBytes), (from - start) * this.rowBytes);
    }));
    return out;
  }

  async rows(start, stop, few = false) {
    return plain(await this.bytes(start, stop, few), this.dtype);
  }

  chunk(number) {
    return this.source.cached(`${this.file}#${number}`, async () => {
      const index = await this.index();
      const size = this.chunkRows * this.rowBytes;
      const [start, length] = [Number(index[2 * number]), Number(index[2 * number + 1])];
      if (length > size + Math.floor(size / 128) + 1024) throw new Error(`${this.path}: the index of chunks is damaged.`);
      try {
        return decompress(await this.source.read(this.file, start, start + length), size);
      } catch (error) {
        throw new Error(`${this.path}, chunk ${number}: ${error.message}`);
      }
    });
  }

  index() {
    this.indexed ??= this.shard.files().then(async (files) => {
      const { size } = files[this.file.slice(this.shard.path.length + 1)] ?? {};
      const bytes = await this.source.read(this.file, size - 4 - 16 * this.chunks, size - 4);
      return new BigUint64Array(bytes.buffer, bytes.byteOffset, 2 * this.chunks);
    });
    return this.indexed;
  }
}

class Shard {
  constructor(split, entry, index, start) {
    this.split = split;
    this.start = start;
    this.rows = entry.rows;
    this.stop = start + entry.rows;
    this.lengths = entry.lengths ?? {};
    this.path = `${split.name}/${String(entry.number ?? index).padStart(5, "0")}`;
    this.arrays = new Map();
  }

  /** The files of the shard, from its zarr.json. */
  files() {
    this.listed ??= this.split.source.file(`${this.path}/zarr.json`).then((bytes) => JSON.parse(new TextDecoder().decode(bytes)).attributes.tsds.files);
    return this.listed;
  }

  array(path, n, spec) {
    if (!this.arrays.has(path)) this.arrays.set(path, new ShardArray(this.split, this, path, n, spec));
    return this.arrays.get(path);
  }

  /** An array of a field of fixed shape, or one of a table: its `offsets`, a value, or one `per_row`. */
  of(field, value) {
    const spec = this.split.manifest.fields[field];
    if (!spec.values) return this.array(field, this.rows, spec);
    if (value === "offsets") return this.array(`${field}/offsets`, this.rows + 1, { dtype: "int64" });
    const perRow = spec.per_row?.[value];
    const n = perRow ? this.rows : this.lengths[field];
    const { ragged, ...rest } = perRow ?? spec.values[value];
    if (!ragged) return this.array(`${field}/${value}`, n, rest);
    const path = `${field}/${value}`;
    return { offsets: this.array(`${path}/offsets`, n + 1, { dtype: "int64" }), items: this.array(`${path}/items`, this.lengths[path], rest) };
  }

  /** Where the values of a row begin and end, of at most so many. */
  async ends(offsets, row, most) {
    const [start, stop] = await offsets.rows(row, row + 2, true);
    if (!(start >= 0 && start <= stop && stop <= most)) throw new Error(`${offsets.path}: the offsets of row ${row} are damaged.`);
    return [start, stop];
  }
}

/** A split: rows of all its shards. */
export class Split {
  constructor(source, manifest, name) {
    // A field may be called __proto__.
    Object.assign(this, { source, manifest, name, fields: Object.create(null), columns: new Map() });
    const entry = manifest.splits[name];
    this.statistics = entry.statistics ?? {};
    this.rows = 0;
    this.shards = entry.shards.map((shard, index) => {
      const made = new Shard(this, shard, index, this.rows);
      this.rows += shard.rows;
      return made;
    });
    for (const [field, spec] of Object.entries(manifest.fields)) if (isReadable(spec)) this.fields[field] = spec;
  }

  shardOf(row) {
    let [low, high] = [0, this.shards.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row < this.shards[middle].stop) high = middle;
      else low = middle + 1;
    }
    const shard = this.shards[low];
    if (!(row >= shard?.start && row < shard.stop)) throw new RangeError(`the split ${this.name} has no row ${row}.`);
    return shard;
  }

  /** All numbers of an array of the split, joined; read once. */
  column(field, value) {
    const key = value ? `${field}/${value}` : field;
    if (!this.columns.has(key)) {
      const made = Promise.all(this.shards.map(async (shard) => {
        const array = shard.of(field, value);
        return array.rows(0, array.n);
      })).then(value === "offsets" ? joinOffsets : join);
      made.catch(() => this.columns.delete(key));
      this.columns.set(key, made);
    }
    return this.columns.get(key);
  }

  /** Numbers of a row of a field of fixed shape. */
  async fixed(field, row) {
    const shard = this.shardOf(row);
    const array = shard.of(field);
    return array.rows(row - shard.start, row - shard.start + 1, array.rowBytes < 4096);
  }

  /** A value of a table for a row: a typed array, or a list of them if it is ragged. */
  async value(field, value, row) {
    const shard = this.shardOf(row);
    const at = row - shard.start;
    const perRow = this.manifest.fields[field].per_row?.[value];
    const [start, stop] = perRow ? [at, at + 1] : await shard.ends(shard.of(field, "offsets"), at, shard.lengths[field]);
    const array = shard.of(field, value);
    if (array.offsets) {
      return Promise.all(Array.from({ length: stop - start }, async (_, i) => {
        const [from, to] = await shard.ends(array.offsets, start + i, shard.lengths[`${field}/${value}`]);
        return array.items.rows(from, to, true);
      }));
    }
    const few = (stop - start) * array.rowBytes < 4096;
    return array.rows(start, stop, few);
  }

  async text(field, row) {
    return new TextDecoder().decode(await this.value(field, "bytes", row));
  }

  async texts(field, row) {
    return (await this.value(field, "text", row)).map((bytes) => new TextDecoder().decode(bytes));
  }

  /** The values of the objects of a row, by name. */
  async objects(field, row) {
    const names = Object.keys(this.fields[field].values);
    const found = await Promise.all(names.map((name) => this.value(field, name, row)));
    return Object.fromEntries(names.map((name, i) => [name, found[i]]));
  }

  first(kind) {
    return Object.keys(this.fields).find((name) => this.fields[name].kind === kind);
  }

  all(kind) {
    return Object.keys(this.fields).filter((name) => this.fields[name].kind === kind);
  }
}

/** Whether a field has known types and layouts only; others are left alone (spec.md, 4.2). */
function isReadable(field) {
  const specs = field.values ? [...Object.values(field.values), ...Object.values(field.per_row ?? {})] : [field];
  return !field.requires?.length && specs.every(({ dtype, layout = "zarr" }) => Object.hasOwn(TYPES, dtype) && ["zarr", "memmap"].includes(layout));
}

function join(parts) {
  if (parts.length === 1) return parts[0];
  const type = parts.find((part) => part.length)?.constructor ?? Float64Array;
  const out = new type(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** Offsets of shards as those of the split. */
function joinOffsets(parts) {
  const out = new Float64Array(parts.reduce((sum, part) => sum + part.length - 1, 1));
  let [at, base] = [1, 0];
  for (const part of parts) {
    for (let i = 1; i < part.length; i++) {
      if (part[i] < part[i - 1]) throw new Error("the offsets of a table are damaged.");
      out[at++] = base + part[i];
    }
    base += part[part.length - 1];
  }
  return out;
}
