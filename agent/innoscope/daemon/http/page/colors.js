// Colors of the wait classes in charts, tables and the flame graph. Related classes have similar colors.
// [hue, saturation, lightness]: dark text is readable on all of them.

const FAMILIES = {
  idle: [210, 12, 80],
  background_idle: [210, 8, 72],
  user_sleep: [200, 14, 74],
  on_cpu: [135, 42, 62],
  runnable: [95, 42, 66],
  innodb_queue: [112, 34, 70],
  disk_full: [330, 62, 44],
  row_lock: [2, 72, 70],
  metadata_lock: [340, 66, 72],
  table_lock: [352, 58, 76],
  user_lock: [328, 52, 76],
  opening_tables: [44, 78, 62],
  spin: [14, 82, 64],
  mutex_wait: [27, 82, 66],
  deadlock_search: [8, 60, 62],
  page_read: [207, 66, 66],
  page_write: [220, 66, 72],
  doublewrite: [234, 60, 77],
  read_ahead: [193, 56, 62],
  fsync_data: [258, 56, 78],
  fsync_redo: [272, 56, 76],
  fsync_binlog: [286, 50, 76],
  redo_space: [303, 56, 72],
  redo_write_wait: [294, 40, 80],
  group_commit: [315, 42, 80],
  free_page_wait: [52, 82, 60],
  flush_wait: [60, 62, 58],
  change_buffer_merge: [72, 50, 60],
  purge: [164, 44, 58],
  purge_delay: [172, 38, 48],
  statistics: [176, 40, 62],
  semisync_ack: [174, 52, 50],
  galera_wait: [322, 34, 74],
  group_replication_wait: [332, 30, 70],
  replication: [184, 42, 66],
  network_send: [150, 40, 66],
  clone: [188, 36, 58],
  recovery: [84, 36, 66],
  shutdown: [0, 0, 66],
  login: [120, 30, 74],
  pool_scan: [66, 44, 64],
  temporary_table: [250, 34, 68],
  allocator: [30, 36, 68],
  other: [40, 16, 72],
};

/** Classes of threads that wait for work. They are hidden by default. */
export const IDLE = new Set(["idle", "background_idle"]);

function hashed(text) {
  let sum = 0;
  for (const letter of text) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return sum;
}

function parts(wait) {
  return FAMILIES[wait] ?? [hashed(wait) % 360, 30, 72];
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Return the color of a wait class. It is darker in dark mode. `lighter` is added to its lightness. */
export function color(wait, lighter = 0) {
  const [hue, saturation, lightness] = parts(wait);
  return dark.matches
    ? `hsl(${hue} ${saturation * 0.8}% ${lightness - 6 + lighter}%)`
    : `hsl(${hue} ${saturation}% ${lightness + lighter}%)`;
}

/** Return the color of a function in a stack of the wait class. Its lightness depends on the function's name. */
export function shade(wait, name) {
  return color(wait, hashed(name) % 7);
}

/** Return the current value of a CSS variable, for example "--line". */
export function styled(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Call `then` when the browser switches between light and dark mode. */
export function onScheme(then) {
  dark.addEventListener("change", then);
}
