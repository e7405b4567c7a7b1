// Numbers and times in words.

export const known = x => x !== null && x !== undefined && x !== '';
export const count = x => known(x) ? x.toLocaleString('en') : '';
export const two = n => String(n).padStart(2, '0');

export function short(x) {
  if (!known(x)) return '';
  return x === 0 || (Math.abs(x) >= 0.01 && Math.abs(x) < 1000) ? x.toFixed(3) : x.toPrecision(3);
}

export function bytes(x) {
  if (!known(x)) return '';
  const units = [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB']];
  const [size, unit] = units.find(([size]) => x >= size) || [1, 'B'];
  return `${(x / size).toFixed(size === 1 ? 0 : 1)} ${unit}`;
}

export function span(x) {
  if (!known(x)) return '';
  if (x < 0.995) return `${Math.round(x * 1000)} ms`;
  if (x < 59.95) return `${x.toFixed(x < 9.995 ? 2 : 1)} s`;
  if (x >= 172800) return `${Number((x / 86400).toPrecision(3))} days`;
  const t = Math.round(x);
  return `${Math.floor(t / 3600)}:${two(Math.floor(t / 60) % 60)}:${two(t % 60)}`;
}
