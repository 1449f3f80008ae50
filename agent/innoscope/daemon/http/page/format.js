// Numbers and times as a person reads them.

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** 1,234 or 12.3 or 0.45: as many digits as help. */
export function number(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** 1,234 or 12.3 or 4.0: averages below each other. */
export function average(value) {
  if (!known(value)) return "–";
  const digits = Math.abs(value) >= 99.95 ? 0 : 1;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 12.3 MiB. */
export function bytes(value) {
  if (!known(value)) return "–";
  const power = value < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(value) / 10));
  return `${number(value / 1024 ** power)} ${UNITS[power]}`;
}

/** 12.3 %. */
export function percent(ratio, digits = 1) {
  if (!known(ratio)) return "–";
  const size = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return `${(ratio * 100).toLocaleString("en", size)} %`;
}

const two = (value) => String(value).padStart(2, "0");

/** 14:03:20 of this browser's clock. */
export function clock(unix, seconds = true) {
  const at = new Date(unix * 1000);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return seconds ? `${text}:${two(at.getSeconds())}` : text;
}

/** 2026-11-21 14:03. */
export function moment(unix) {
  const at = new Date(unix * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(unix, false)}`;
}

/** 50 s, 12 min, 3 h, 5 d. */
export function span(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}
