// A batch of usage records, as docs/formats.md tells: written a second time, in another language, from the page alone.
const TABLE = (() => {
  const table = new Uint32Array(256);
  for (let byte = 0; byte < 256; byte += 1) {
    let value = byte;
    for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
    table[byte] = value >>> 0;
  }
  return table;
})();

function crc32c(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = (value >>> 8) ^ TABLE[(value ^ byte) & 0xff];
  return (value ^ 0xffffffff) >>> 0;
}

function fixed(bytes, value, length) {
  let rest = value;
  for (let index = 0; index < length; index += 1) {
    bytes.push(rest % 256);
    rest = Math.floor(rest / 256);
  }
}

function number(bytes, value) {
  let rest = value;
  while (rest >= 128) {
    bytes.push((rest % 128) + 128);
    rest = Math.floor(rest / 128);
  }
  bytes.push(rest);
}

const difference = (bytes, value) => number(bytes, value >= 0 ? value * 2 : -value * 2 - 1);

function text(bytes, value) {
  bytes.push(value.length);
  for (const letter of value) bytes.push(letter.charCodeAt(0));
}

/// Root commits of some volumes of some tenants, one record a second, until now.
export function batch(source, incarnation, firstSequence, count, tenants) {
  const bytes = [0x46, 0x55, 0x53, 0x47, 1, 0];
  text(bytes, source);
  fixed(bytes, incarnation, 8);
  fixed(bytes, firstSequence, 8);
  fixed(bytes, count, 4);
  const named = tenants.slice(0, count);
  number(bytes, named.length);
  for (const tenant of named) text(bytes, tenant);
  number(bytes, 1);
  text(bytes, "volume/load");
  let before = 0;
  const begin = Date.now() - (count + 2) * 1000;
  for (let index = 0; index < count; index += 1) {
    const from = begin + index * 1000;
    number(bytes, index % named.length);
    number(bytes, 0);
    number(bytes, 1); // root-commits
    number(bytes, 3);
    difference(bytes, from - before);
    number(bytes, 1000);
    before = from;
  }
  fixed(bytes, crc32c(bytes), 4);
  return new Uint8Array(bytes).buffer;
}
