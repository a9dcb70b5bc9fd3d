// A Python traceback for its reader: the error, the innermost frames of their own code, everything.

const FRAME = /^ {2}File "([^"]*)", line \d+/;
const NOT_OWN = /\/(dtd\/(train|strategy|own_loop|worker|engine|exchange)|site-packages|dist-packages|python3\.\d+)\/|^</;
const MOST = 3;

// [error, own frames, the whole text]; the first two are empty where there are none.
export function ownFirst(text) {
  const lines = text.trimEnd().split("\n");
  const frames = [];
  for (const line of lines) {
    const found = FRAME.exec(line);
    if (found) frames.push({ path: found[1], lines: [line] });
    else if (line.startsWith("    ")) frames[frames.length - 1]?.lines.push(line);
  }
  const own = frames.filter((one) => !NOT_OWN.test(one.path)).slice(-MOST).flatMap((one) => one.lines);
  const error = lines.findLast((line) => /^[A-Za-z_][\w.]*(: |$)/.test(line)) ?? "";
  return [error, own.join("\n"), text];
}
