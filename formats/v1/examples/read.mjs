// Read a row of a tsds store in JavaScript: `npm install zarrita`, then `node read.mjs STORE SPLIT ROW`.
// STORE is a folder, or a URL whose server answers ranges.
import { createHash } from "node:crypto";
import FileSystemStore from "@zarrita/storage/fs";
import * as zarr from "zarrita";

const [place, split, number] = process.argv.slice(2);
const isUrl = /^https?:\/\//.test(place);
const store = isUrl ? new zarr.FetchStore(place, { useSuffixRequest: true }) : new FileSystemStore(place);
const manifest = await openManifest();

// Rows are counted in the split; an array lies in a shard.
const shards = manifest.splits[split].shards;
let row = Number(number);
let index = 0;
while (index < shards.length && row >= shards[index].rows) row -= shards[index++].rows;
if (index === shards.length || !Number.isInteger(row) || row < 0) throw new RangeError(`${split} has no row ${number}`);
const shard = `${split}/${String(shards[index].number ?? index).padStart(5, "0")}`;

const sample = {};
for (const [name, field] of Object.entries(manifest.fields)) {
  if (field.requires?.length || !isReadable(field)) {
    sample[name] = "cannot be read by this program";
  } else if (field.kind === "key") {
    sample[name] = new TextDecoder().decode((await tableRow(name, "bytes")).data);
  } else if (field.kind === "text") {
    sample[name] = await texts(name);
  } else if (field.kind === "labels") {
    const row = (await fixedRow(name)).data; // -1: it is not known whether the class applies
    sample[name] = field.classes.filter((_, i) => row[i] === 1);
  } else if (field.kind === "label") {
    const label = Number((await fixedRow(name)).data[0]);
    sample[name] = { label, class: field.classes[label] ?? null }; // -1: the sample has no label
  } else if (field.kind === "image") {
    const value = field.values && Object.keys(field.values)[0]; // the bytes of a file, or pixels of any size
    const { data, shape } = value ? await tableRow(name, value) : await fixedRow(name);
    const pixels = value === "pixels" ? Array.from((await fixedRow(`${name}/shape`)).data) : shape;
    sample[name] = { encoding: field.encoding, shape: pixels, sha256: sha256(data) };
  }
}
console.log(JSON.stringify(sample, null, 1));

/** The manifest, of a root whose digest is right. */
async function openManifest() {
  const root = await store.get("/zarr.json");
  if (!root) throw new Error(`${place} is no store: it has no zarr.json`);
  const text = new TextDecoder().decode(root);
  const { tsds, tsds_sha256: digest } = JSON.parse(text).attributes;
  if (!/^1\.\d+$/.test(tsds.format_version)) throw new Error(`${place}: not of format 1`);
  if (tsds.requires?.length) throw new Error(`${place}: requires ${tsds.requires}, which this reader does not know`);
  const parts = text.split(digest);
  if (parts.length !== 2 || sha256(parts.join("0".repeat(64))) !== digest) {
    throw new Error(`${place}: zarr.json was changed: its digest is another`);
  }
  return tsds;
}

/** Whether a field has known data types and layouts only; all other fields are left alone (spec.md, 4.2). */
function isReadable(field) {
  const specs = [field, ...Object.values(field.values ?? {}), ...Object.values(field.per_row ?? {})];
  const isType = (type) => /^(u?int(8|16|32|64)|float(16|32|64))$/.test(type);
  return specs.every(({ dtype = "int8", layout = "zarr" }) => isType(dtype) && ["zarr", "memmap"].includes(layout));
}

/** The row of a field of fixed shape: its inner chunk is fetched, found by the index of the array's file. */
async function fixedRow(path) {
  const array = await zarr.open(zarr.root(store).resolve(`${shard}/${path}`), { kind: "array" });
  const { data, shape } = await zarr.get(array, [zarr.slice(row, row + 1), ...array.shape.slice(1).map(() => null)]);
  return { data, shape: shape.slice(1) };
}

/** The values of the row of a table, between two of its offsets. */
async function tableRow(path, value) {
  const open = (name) => zarr.open(zarr.root(store).resolve(`${shard}/${path}/${name}`), { kind: "array" });
  const { data: ends } = await zarr.get(await open("offsets"), [zarr.slice(row, row + 2)]);
  const [start, stop] = Array.from(ends, Number); // less than 2^53
  if (start === stop) return { data: new Uint8Array(), shape: [0] };
  return zarr.get(await open(value), [zarr.slice(start, stop)]);
}

/** The texts of the row: lists of bytes, between the offsets of each. */
async function texts(path) {
  const open = (name) => zarr.open(zarr.root(store).resolve(`${shard}/${path}/${name}`), { kind: "array" });
  const { data: ends } = await zarr.get(await open("offsets"), [zarr.slice(row, row + 2)]);
  const [first, last] = Array.from(ends, Number);
  if (first === last) return [];
  const { data: places } = await zarr.get(await open("text/offsets"), [zarr.slice(first, last + 1)]);
  const [begin, ...stops] = Array.from(places, Number);
  if (begin === stops.at(-1)) return stops.map(() => "");
  const { data } = await zarr.get(await open("text/items"), [zarr.slice(begin, stops.at(-1))]);
  return stops.map((stop, i) => new TextDecoder().decode(data.slice((i ? stops[i - 1] : begin) - begin, stop - begin)));
}

function sha256(data) {
  const bytes = typeof data === "string" ? data : new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return createHash("sha256").update(bytes).digest("hex");
}
