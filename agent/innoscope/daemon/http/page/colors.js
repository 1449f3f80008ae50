// Colors of the wait classes in charts, tables and the flame graph.
// [hue, saturation, lightness]: dark text is readable on all of them.

// The most frequent classes of busy threads. Any two of them remain distinguishable with protanopia,
// deuteranopia and tritanopia (tests/browser/test_live_page_colors.py).
const FREQUENT = {
  on_cpu: [136, 68, 44],
  row_lock: [4, 70, 79],
  metadata_lock: [347, 72, 65],
  mutex_wait: [56, 71, 41],
  spin: [45, 60, 83],
  page_read: [245, 75, 72],
  page_write: [217, 75, 90],
  doublewrite: [189, 40, 69],
  fsync_redo: [268, 69, 83],
  redo_write_wait: [279, 67, 73],
  redo_space: [327, 41, 63],
  group_commit: [313, 60, 62],
  flush_wait: [78, 76, 53],
  free_page_wait: [43, 72, 70],
  network_send: [164, 70, 78],
};

// All other classes. Related classes have similar colors.
const FAMILIES = {
  idle: [210, 12, 80],
  background_idle: [210, 8, 72],
  user_sleep: [200, 14, 74],
  runnable: [95, 42, 66],
  innodb_queue: [112, 34, 70],
  disk_full: [338, 62, 66],
  table_lock: [352, 58, 76],
  user_lock: [328, 52, 76],
  opening_tables: [44, 78, 62],
  deadlock_search: [8, 60, 62],
  read_ahead: [193, 56, 62],
  fsync_data: [258, 56, 78],
  fsync_binlog: [286, 50, 76],
  change_buffer_merge: [72, 50, 60],
  purge: [164, 44, 58],
  purge_delay: [172, 38, 48],
  statistics: [176, 40, 62],
  semisync_ack: [174, 52, 50],
  galera_wait: [322, 34, 74],
  group_replication_wait: [332, 30, 70],
  replication: [184, 42, 66],
  clone: [188, 36, 58],
  recovery: [84, 36, 66],
  shutdown: [0, 0, 66],
  login: [120, 30, 74],
  pool_scan: [66, 44, 64],
  temporary_table: [250, 34, 68],
  allocator: [30, 36, 68],
  other: [40, 16, 72],
};

/** Classes of threads that are waiting for work. They are hidden by default. */
export const IDLE = new Set(["idle", "background_idle"]);

function hashed(text) {
  let sum = 0;
  for (const letter of text) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return sum;
}

function parts(wait) {
  return FREQUENT[wait] ?? FAMILIES[wait] ?? [hashed(wait) % 360, 30, 72];
}

const dark = matchMedia("(prefers-color-scheme: dark)");
// Chromium sends no `change` event if `matches` is read between the change and the next frame.
let isDark = dark.matches;
onScheme(() => {
  isDark = dark.matches;
});

/** Return the color of a wait class, which is the same everywhere on the page. It is darker in dark mode. */
export function color(wait) {
  const [hue, saturation, lightness] = parts(wait);
  return isDark
    ? `hsl(${hue} ${saturation * 0.8}% ${lightness - 6}%)`
    : `hsl(${hue} ${saturation}% ${lightness}%)`;
}

/** Return the current value of a CSS variable, for example "--line". */
export function styled(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Call `then` when the browser switches between light and dark mode. */
export function onScheme(then) {
  dark.addEventListener("change", then);
}
