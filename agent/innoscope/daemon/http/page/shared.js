// Frames that many stacks share, from the start of a thread to, for example, dispatch_command.

const LEAST = 3; // minimum number of frames to fold, and of stacks that share them

/**
 * Return the paths from the root that at least LEAST stacks share, up to the first branch. A path of fewer than LEAST
 * frames continues to the next branch.
 */
export function sharedPaths(paths) {
  const root = { children: new Map(), stacks: 0 };
  for (const path of new Set(paths.map((names) => names.join("\n")))) {
    let node = root;
    for (const name of path.split("\n")) {
      if (!node.children.has(name)) node.children.set(name, { children: new Map(), stacks: 0 });
      node = node.children.get(name);
      node.stacks++;
    }
  }
  return found(root, [], 2);
}

function found(node, path, branches) {
  return [...node.children].flatMap(([name, child]) => {
    if (child.stacks < LEAST) return [];
    const [end, run] = follow(child, [name]);
    const whole = [...path, ...run];
    if (whole.length >= LEAST) return [whole];
    return branches > 1 ? found(end, whole, branches - 1) : [];
  });
}

/** Return the first node from `node` on at which stacks branch or end, and the names up to it. */
function follow(node, names) {
  if (node.children.size !== 1) return [node, names];
  const [[name, child]] = node.children;
  return child.stacks < node.stacks ? [node, names] : follow(child, [...names, name]);
}

/** Return the shared part of a path; null if there is none. */
export function sharedPart(path, shared) {
  return shared.find((one) => one.every((name, index) => path[index] === name)) ?? null;
}
