// Bytes of files, from wherever they are: `read(path, start, stop)`, and whole small files by `file(path)`.

const BLOCK = 64 * 1024;
const GAP = 32 * 1024; // reads that lie closer than this are one request
const MOST = 4 * 1024 * 1024;

const MOST_WHOLE = 512 * 1024 * 1024;

/**
 * A source over HTTP, by plain ranges: `bytes=first-last` needs no preflight. A server without ranges, such as Python's
 * http.server, sends whole files, of which the last ones are kept.
 */
export function httpTransport(base) {
  const url = base.endsWith("/") ? base : `${base}/`;
  const files = new Map();
  const failed = (path, answer) => new Error(`${path}: the server answered ${answer.status} ${answer.statusText}`);
  const whole = async (path, answer) => {
    const size = Number(answer.headers.get("Content-Length"));
    if (size > MOST_WHOLE) {
      answer.body?.cancel();
      throw new Error(`${path}: this server sends whole files only, and this one has ${size} bytes. Use tsds serve or nginx.`);
    }
    const bytes = new Uint8Array(await answer.arrayBuffer());
    if (size > bytes.length && !answer.headers.has("Content-Encoding")) throw new Error(`${path}: cut short, expected ${size} bytes`);
    files.set(path, bytes);
    let kept = [...files.values()].reduce((sum, file) => sum + file.length, 0);
    for (const [old, file] of files) {
      if (kept <= MOST_WHOLE || old === path) break;
      files.delete(old);
      kept -= file.length;
    }
    return bytes;
  };
  const loading = new Map();
  return {
    async range(path, start, stop) {
      if (files.has(path)) return files.get(path).subarray(start, stop);
      if (loading.has(path)) return (await loading.get(path)).subarray(start, stop);
      // Chromium's cache sometimes answers one of several overlapping ranges with no bytes at all.
      const answer = await fetch(url + path, { headers: { Range: `bytes=${start}-${stop - 1}` }, cache: "no-store" });
      if (answer.status === 206) return new Uint8Array(await answer.arrayBuffer());
      if (answer.status !== 200) {
        answer.body?.cancel();
        throw failed(path, answer);
      }
      const made = whole(path, answer).finally(() => loading.delete(path));
      loading.set(path, made);
      return (await made).subarray(start, stop);
    },
    async whole(path) {
      const answer = await fetch(url + path, { cache: "no-cache" });
      if (!answer.ok) throw failed(path, answer);
      return new Uint8Array(await answer.arrayBuffer());
    },
  };
}

/** Reads that are made in the same moment are joined, and small ones are kept. */
export class Source {
  constructor(transport, keep = 48 * 1024 * 1024) {
    this.transport = transport;
    this.waiting = new Map();
    this.kept = new Map();
    this.keep = keep;
    this.nbytes = 0;
    this.requests = 0;
    this.received = 0;
  }

  async file(path) {
    this.requests += 1;
    const bytes = await this.transport.whole(path);
    this.received += bytes.length;
    return bytes;
  }

  /** The bytes [start, stop) of a file. */
  read(path, start, stop) {
    if (start === stop) return Promise.resolve(new Uint8Array(0));
    return new Promise((resolve, reject) => {
      if (!this.waiting.size) setTimeout(() => this.flush());
      const list = this.waiting.get(path) ?? [];
      list.push({ start, stop, resolve, reject });
      this.waiting.set(path, list);
    });
  }

  flush() {
    const all = this.waiting;
    this.waiting = new Map();
    for (const [path, reads] of all) {
      reads.sort((a, b) => a.start - b.start);
      let group = [];
      let end = 0;
      for (const read of reads) {
        if (group.length && (read.start > end + GAP || read.stop - group[0].start > MOST)) {
          this.request(path, group, end);
          group = [];
        }
        group.push(read);
        end = group.length > 1 ? Math.max(end, read.stop) : read.stop;
      }
      this.request(path, group, end);
    }
  }

  async request(path, reads, stop) {
    const start = reads[0].start;
    try {
      this.requests += 1;
      const bytes = await this.transport.range(path, start, stop);
      this.received += bytes.length;
      if (bytes.length < stop - start) throw new Error(`${path}: cut short, expected ${stop} bytes`);
      for (const read of reads) read.resolve(bytes.slice(read.start - start, read.stop - start));
    } catch (error) {
      for (const read of reads) read.reject(error);
    }
  }

  /** As `read`, by blocks that are kept, for values that lie beside each other. */
  async near(path, start, stop, size) {
    const out = new Uint8Array(stop - start);
    const blocks = [];
    for (let block = Math.floor(start / BLOCK); block * BLOCK < stop; block++) {
      blocks.push(this.cached(`${path}:${block}`, () => this.read(path, block * BLOCK, Math.min((block + 1) * BLOCK, size))));
    }
    const first = Math.floor(start / BLOCK) * BLOCK;
    let at = first;
    for (const bytes of await Promise.all(blocks)) {
      const from = Math.max(start, at);
      const to = Math.min(stop, at + BLOCK);
      out.set(bytes.subarray(from - at, to - at), from - start);
      at += BLOCK;
    }
    return out;
  }

  /** What `make` gives, kept until others need the room. */
  cached(key, make) {
    const found = this.kept.get(key);
    if (found) {
      this.kept.delete(key);
      this.kept.set(key, found);
      return found;
    }
    const made = make();
    this.kept.set(key, made);
    made.then(
      (bytes) => {
        this.nbytes += bytes.length;
        for (const [old, promise] of this.kept) {
          if (this.nbytes <= this.keep) break;
          if (old === key) continue;
          this.kept.delete(old);
          promise.then((gone) => (this.nbytes -= gone.length));
        }
      },
      () => this.kept.delete(key),
    );
    return made;
  }
}
