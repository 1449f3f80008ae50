// Format numbers and times.

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** Format a number as 1,234 or 12.3 or 0.45. */
export function number(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Format an average as 1,234 or 12.3 or 4.0, so that the values in a column are comparable. */
export function average(value) {
  if (!known(value)) return "–";
  const digits = Math.abs(value) >= 99.95 ? 0 : 1;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Format bytes as 12.3 MiB. */
export function bytes(value) {
  if (!known(value)) return "–";
  const power = value < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(value) / 10));
  return `${number(value / 1024 ** power)} ${UNITS[power]}`;
}

/** Format a ratio as 12.3 %. */
export function percent(ratio, digits = 1) {
  if (!known(ratio)) return "–";
  const size = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return `${(ratio * 100).toLocaleString("en", size)} %`;
}

const two = (value) => String(value).padStart(2, "0");

/** Format a Unix time as 14:03:20 in the browser's time zone. */
export function clock(unix, seconds = true) {
  const at = new Date(unix * 1000);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return seconds ? `${text}:${two(at.getSeconds())}` : text;
}

/** Format a Unix time as 2026-11-21 14:03. */
export function moment(unix) {
  const at = new Date(unix * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(unix, false)}`;
}

/** Format seconds as 50 s, 12 min, 3 h or 5 d. */
export function span(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}
