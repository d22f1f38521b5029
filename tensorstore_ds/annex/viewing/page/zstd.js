// Decompress Zstandard frames (RFC 8878) as a store has them: one frame of a known size, without a dictionary.

const LL_BASE = [16, 18, 20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
const LL_BITS = [1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const ML_BASE = [35, 37, 39, 41, 43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539];
const ML_BITS = [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const LL_DEFAULT = [
  4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1,
];
const ML_DEFAULT = [1, 4, 3, 2, 2, 2, 2, 2, 2, ...Array(37).fill(1), ...Array(7).fill(-1)];
const OF_DEFAULT = [1, 1, 1, 1, 1, 1, 2, 2, 2, ...Array(15).fill(1), ...Array(5).fill(-1)];
const BLOCK = 128 * 1024;

/** The value of each code: itself below the tables, then what they say. */
const values = (count, first, table) => [...Array.from({ length: count }, (_, i) => i + first), ...table];
const LENGTHS = {
  ll: { base: values(16, 0, LL_BASE), bits: [...Array(16).fill(0), ...LL_BITS] },
  ml: { base: values(32, 3, ML_BASE), bits: [...Array(32).fill(0), ...ML_BITS] },
};

function damaged(what) {
  throw new Error(`this chunk is damaged: ${what}`);
}

/**
 * Decompress one frame.
 * @param {Uint8Array} source the frame
 * @param {number} size bytes that it must hold
 * @returns {Uint8Array}
 */
export function decompress(source, size) {
  const view = new DataView(source.buffer, source.byteOffset, source.byteLength);
  if (source.length < 6 || view.getUint32(0, true) !== 0xfd2fb528) damaged("no frame");
  const flags = source[4];
  const single = (flags >> 5) & 1;
  if (flags & 3) damaged("a dictionary");
  const width = [single, 2, 4, 8][flags >> 6];
  let at = single ? 5 : 6;
  let content = 0;
  for (let i = width - 1; i >= 0; i--) content = content * 256 + (source[at + i] ?? damaged("cut off"));
  if (content + (width === 2 ? 256 : 0) !== size || !width) damaged(`not of ${size} bytes`);
  at += width;
  const out = new Uint8Array(size);
  const state = { out, end: 0, repeats: [1, 4, 8], tables: {}, huffman: null };
  for (let last = 0; !last; ) {
    if (at + 3 > source.length) damaged("cut off");
    const header = source[at] | (source[at + 1] << 8) | (source[at + 2] << 16);
    const length = header >> 3;
    const kind = (header >> 1) & 3;
    last = header & 1;
    at += 3;
    const stored = kind === 1 ? 1 : length;
    if (at + stored > source.length || length > BLOCK) damaged("a block");
    if (kind !== 2 && state.end + length > size) damaged("too long");
    if (kind === 0) out.set(source.subarray(at, at + length), state.end);
    else if (kind === 1) out.fill(source[at], state.end, state.end + length);
    else if (kind === 2) decodeBlock(source.subarray(at, at + length), state);
    else damaged("a block's kind");
    if (kind !== 2) state.end += length;
    at += stored;
  }
  if (state.end !== size) damaged(`of ${state.end} bytes`);
  return out;
}

/** Bits of a stream that is read from its end. */
class Backwards {
  constructor(bytes) {
    const last = bytes[bytes.length - 1];
    if (!last) damaged("a stream");
    this.bytes = bytes;
    this.at = bytes.length * 8 - Math.clz32(last) + 23; // below the bit that marks the end
  }

  /** The next bits, at most 24, which stay; zeros before the beginning. */
  peek(count) {
    const from = this.at - count;
    if (from < 0) return this.at <= 0 ? 0 : (this.low(0) & ((1 << this.at) - 1)) << -from;
    return (this.low(from >> 3) >>> (from & 7)) & ((1 << count) - 1);
  }

  low(byte) {
    const { bytes } = this;
    return bytes[byte] | (bytes[byte + 1] << 8) | (bytes[byte + 2] << 16) | (bytes[byte + 3] << 24);
  }

  read(count) {
    if (count > 16) return this.read(count - 16) * 65536 + this.read(16);
    const value = count && this.peek(count);
    this.at -= count;
    return value;
  }
}

/** A distribution of symbols, as 4.1.1 has it: the table, and where it ends. */
function readTable(bytes, at, mostBits, mostSymbol) {
  let bit = at * 8;
  const take = (count) => {
    let value = 0;
    for (let i = 0; i < count; i++, bit++) value |= ((bytes[bit >> 3] >> (bit & 7)) & 1) << i;
    return value;
  };
  const log = take(4) + 5;
  if (log > mostBits) damaged("a table");
  const counts = [];
  let left = (1 << log) + 1;
  while (left > 1) {
    if (bit > bytes.length * 8 || counts.length > mostSymbol) damaged("a table");
    const width = 32 - Math.clz32(left);
    const short = (1 << width) - 1 - left;
    let value = take(width - 1);
    if (value >= short) {
      value |= take(1) << (width - 1);
      if (value >= 1 << (width - 1)) value -= short;
    }
    counts.push(value - 1);
    left -= Math.abs(value - 1);
    if (value === 1) {
      let run;
      do {
        run = take(2);
        for (let i = 0; i < run; i++) counts.push(0);
      } while (run === 3 && bit <= bytes.length * 8);
    }
  }
  if (left !== 1 || counts.length > mostSymbol + 1 || bit > bytes.length * 8) damaged("a table");
  return { table: fse(counts, log), end: (bit + 7) >> 3 };
}

/** The states of a decoder: symbol, bits to read, and what is added to them. */
function fse(counts, log) {
  const size = 1 << log;
  const symbol = new Uint8Array(size);
  const bits = new Uint8Array(size);
  const base = new Uint16Array(size);
  const next = counts.map((count) => (count < 0 ? 1 : count));
  let high = size;
  counts.forEach((count, s) => count < 0 && (symbol[--high] = s));
  const step = (size >> 1) + (size >> 3) + 3;
  let place = 0;
  counts.forEach((count, s) => {
    for (let i = 0; i < count; i++) {
      symbol[place] = s;
      do place = (place + step) & (size - 1);
      while (place >= high);
    }
  });
  for (let i = 0; i < size; i++) {
    const value = next[symbol[i]]++;
    bits[i] = log - 31 + Math.clz32(value);
    base[i] = (value << bits[i]) - size;
  }
  return { log, symbol, bits, base };
}

const single = (symbol) => ({ log: 0, symbol: [symbol], bits: [0], base: [0] });
const DEFAULTS = { ll: fse(LL_DEFAULT, 6), of: fse(OF_DEFAULT, 5), ml: fse(ML_DEFAULT, 6) };

/** A Huffman table as 4.2.1 has it, and where its description ends. */
function readHuffman(bytes) {
  const head = bytes[0];
  const weights = [];
  let end = 1;
  if (head >= 128) {
    end += (head - 126) >> 1;
    for (let i = 0; i < head - 127; i++) weights.push(i & 1 ? bytes[1 + (i >> 1)] & 15 : bytes[1 + (i >> 1)] >> 4);
  } else {
    end += head;
    const { table, end: begin } = readTable(bytes.subarray(0, end), 1, 6, 255);
    const stream = new Backwards(bytes.subarray(begin, end));
    const states = [stream.read(table.log), stream.read(table.log)];
    for (let i = 0; weights.length < 255; i ^= 1) {
      const state = states[i];
      weights.push(table.symbol[state]);
      if (stream.at < table.bits[state]) {
        weights.push(table.symbol[states[i ^ 1]]);
        break;
      }
      states[i] = table.base[state] + stream.read(table.bits[state]);
    }
  }
  if (end > bytes.length) damaged("a Huffman table");
  let sum = 0;
  for (const weight of weights) sum += weight && 1 << (weight - 1);
  const most = 32 - Math.clz32(sum);
  const rest = (1 << most) - sum;
  if (!sum || most > 11 || rest & (rest - 1)) damaged("a Huffman table");
  weights.push(32 - Math.clz32(rest));
  const symbols = new Uint8Array(1 << most);
  const lengths = new Uint8Array(1 << most);
  let at = 0;
  for (let weight = 1; weight <= most; weight++) {
    weights.forEach((each, symbol) => {
      if (each !== weight) return;
      const span = 1 << (weight - 1);
      symbols.fill(symbol, at, at + span);
      lengths.fill(most + 1 - weight, at, at + span);
      at += span;
    });
  }
  return { table: { most, symbols, lengths }, end };
}

function decodeStream(bytes, { most, symbols, lengths }, out, start, stop) {
  const stream = new Backwards(bytes);
  for (let i = start; i < stop; i++) {
    const code = stream.peek(most);
    out[i] = symbols[code];
    stream.at -= lengths[code];
  }
  if (stream.at !== 0) damaged("literals");
}

/** The literals of a block, and where its sequences begin. */
function readLiterals(bytes, state) {
  const kind = bytes[0] & 3;
  const form = (bytes[0] >> 2) & 3;
  const little = (count) => bytes.subarray(0, count).reduceRight((sum, byte) => sum * 256 + byte, 0);
  if (kind < 2) {
    const header = [1, 2, 1, 3][form];
    const size = Math.floor(little(header) / (header === 1 ? 8 : 16));
    if (size > BLOCK || header + (kind ? 1 : size) > bytes.length) damaged("literals");
    if (kind === 0) return { literals: bytes.subarray(header, header + size), at: header + size };
    return { literals: new Uint8Array(size).fill(bytes[header]), at: header + 1 };
  }
  const header = [3, 3, 4, 5][form];
  const width = [10, 10, 14, 18][form];
  const both = Math.floor(little(header) / 16);
  const size = both % 2 ** width;
  const stop = header + Math.floor(both / 2 ** width);
  if (size > BLOCK || stop > bytes.length) damaged("literals");
  let body = bytes.subarray(header, stop);
  if (kind === 2) {
    const { table, end } = readHuffman(body);
    state.huffman = table;
    body = body.subarray(end);
  }
  if (!state.huffman) damaged("no Huffman table");
  const literals = new Uint8Array(size);
  if (form === 0) decodeStream(body, state.huffman, literals, 0, size);
  else {
    const part = (size + 3) >> 2;
    const sizes = [0, 2, 4].map((i) => body[i] | (body[i + 1] << 8));
    let from = 6;
    for (let i = 0; i < 4; i++) {
      const to = i < 3 ? from + sizes[i] : body.length;
      if (to > body.length || from >= to) damaged("literals");
      decodeStream(body.subarray(from, to), state.huffman, literals, Math.min(i * part, size), i < 3 ? Math.min((i + 1) * part, size) : size);
      from = to;
    }
  }
  return { literals, at: stop };
}

function decodeBlock(bytes, state) {
  const { literals, at: begin } = readLiterals(bytes, state);
  const { out } = state;
  let at = begin;
  let count = bytes[at++];
  if (count >= 128) {
    count = count < 255 ? ((count - 128) << 8) + bytes[at++] : bytes[at++] + (bytes[at++] << 8) + 0x7f00;
  }
  let used = 0;
  if (count) {
    const modes = bytes[at++];
    const tables = state.tables;
    for (const [name, shift, log, most] of [["ll", 6, 9, 35], ["of", 4, 8, 31], ["ml", 2, 9, 52]]) {
      const mode = (modes >> shift) & 3;
      if (mode === 0) tables[name] = DEFAULTS[name];
      else if (mode === 1) {
        if (bytes[at] > most) damaged("a table");
        tables[name] = single(bytes[at++]);
      } else if (mode === 2) ({ table: tables[name], end: at } = readTable(bytes, at, log, most));
      if (!tables[name]) damaged("no table");
    }
    used = runSequences(new Backwards(bytes.subarray(at)), count, literals, state);
  }
  if (state.end + literals.length - used > out.length) damaged("too long");
  out.set(literals.subarray(used), state.end);
  state.end += literals.length - used;
}

/** Copy literals and matches; how many literals were used. */
function runSequences(stream, count, literals, state) {
  const { out, repeats } = state;
  const { ll, of, ml } = state.tables;
  let l = stream.read(ll.log);
  let o = stream.read(of.log);
  let m = stream.read(ml.log);
  let used = 0;
  let end = state.end;
  for (let i = 0; i < count; i++) {
    const code = of.symbol[o];
    const raw = 2 ** code + stream.read(code);
    const match = LENGTHS.ml.base[ml.symbol[m]] + stream.read(LENGTHS.ml.bits[ml.symbol[m]]);
    const plain = LENGTHS.ll.base[ll.symbol[l]] + stream.read(LENGTHS.ll.bits[ll.symbol[l]]);
    if (i + 1 < count) {
      l = ll.base[l] + stream.read(ll.bits[l]);
      m = ml.base[m] + stream.read(ml.bits[m]);
      o = of.base[o] + stream.read(of.bits[o]);
    }
    const offset = distance(raw, plain, repeats);
    if (used + plain > literals.length || end + plain + match > out.length) damaged("too long");
    for (let j = 0; j < plain; j++) out[end++] = literals[used++];
    if (offset > end || offset < 1) damaged("an offset");
    if (offset >= match) out.copyWithin(end, end - offset, end - offset + match);
    else for (let j = 0; j < match; j++) out[end + j] = out[end + j - offset];
    end += match;
  }
  if (stream.at !== 0) damaged("sequences");
  state.end = end;
  return used;
}

/** How far back a match lies; keeps the last three distances (3.1.1.5). */
function distance(raw, plain, repeats) {
  if (raw > 3) {
    repeats.unshift(raw - 3);
    repeats.pop();
    return repeats[0];
  }
  const index = raw - 1 + (plain === 0 ? 1 : 0);
  if (index === 0) return repeats[0];
  const found = index === 3 ? repeats[0] - 1 : repeats[index];
  repeats.splice(Math.min(index, 2), 1);
  repeats.unshift(found);
  return found;
}
