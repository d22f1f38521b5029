// zarrita, in JavaScript: `node zarrita.mjs STORE STAGE`, in a folder where `npm install zarrita` was run.
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { dirname, join, relative, sep } from "node:path";
import FileSystemStore from "@zarrita/storage/fs";
import * as zarr from "zarrita";

const store = process.argv[2];
const root = zarr.root(new FileSystemStore(store));
const arrays = {};
for (const entry of await readdir(store, { recursive: true, withFileTypes: true })) {
  const file = join(entry.parentPath ?? entry.path, entry.name);
  if (entry.name !== "zarr.json" || JSON.parse(await readFile(file, "utf8")).node_type !== "array") continue;
  const path = relative(store, dirname(file)).split(sep).join("/");
  const array = await zarr.open(root.resolve(path), { kind: "array" });
  const shape = array.shape; // zarrita cannot get an array without rows
  const data = shape.includes(0) ? new Uint8Array() : (await zarr.get(array)).data;
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  arrays[path] = { dtype: array.dtype, shape, sha256: createHash("sha256").update(bytes).digest("hex") };
}
console.log(JSON.stringify({ arrays }));
