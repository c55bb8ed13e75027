// Owns the examples. Each runs unchanged on the runners of this repository; the menu offers those whose language the
// server has. An untouched editor shows the first one of its language.

export const EXAMPLES = [
  {
    id: "python-hello",
    language: "python",
    title: "Hello World",
    code: `import platform

print("Hello from Python", platform.python_version())
for n in range(1, 6):
    print(n, "squared is", n**2)
`,
  },
  {
    id: "python-pandas",
    language: "python",
    title: "Data Analysis (pandas)",
    code: `import pandas as pd

sales = pd.DataFrame(
    {
        "region": ["North", "South", "East", "West"] * 3,
        "month": ["Jan"] * 4 + ["Feb"] * 4 + ["Mar"] * 4,
        "units": [120, 95, 143, 80, 132, 101, 150, 97, 141, 99, 162, 110],
        "price": [9.5, 9.5, 10.0, 9.0, 9.5, 9.9, 10.0, 9.0, 9.9, 9.9, 10.5, 9.5],
    }
)
sales["revenue"] = sales["units"] * sales["price"]

summary = sales.groupby("region")["revenue"].agg(["sum", "mean"]).round(2)
print(summary)
print()
print("Best month:", sales.groupby("month")["revenue"].sum().idxmax())

# The working directory is /data: files written there can be downloaded.
summary.to_csv("out.csv")
print("Wrote out.csv")
`,
  },
  {
    id: "python-chart",
    language: "python",
    title: "Chart (matplotlib)",
    code: `import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 4 * np.pi, 400)
fig, ax = plt.subplots(figsize=(7, 4))
for damping in (0.0, 0.1, 0.25):
    ax.plot(x, np.sin(x) * np.exp(-damping * x), label=f"damping {damping}")
ax.set_title("A damped wave")
ax.set_xlabel("time")
ax.set_ylabel("amplitude")
ax.grid(alpha=0.3)
ax.legend()
fig.tight_layout()
fig.savefig("chart.png", dpi=130)
plt.close(fig)
print("Wrote chart.png")
`,
  },
  {
    id: "python-progress",
    language: "python",
    title: "Progress and colours",
    code: `import sys
import time

for done in range(0, 101, 5):
    print(f"\\r{'█' * (done // 5):20} {done:3} %", end="", flush=True)
    time.sleep(0.05)
print()

for name, colour in {"red": 31, "green": 32, "blue": 34}.items():
    print(f"\\x1b[{colour}m{name}\\x1b[0m", end=" ")
print("\\x1b[1mbold\\x1b[0m", flush=True)
print("This line goes to standard error.", file=sys.stderr)
`,
  },
  {
    id: "typescript-hello",
    language: "typescript",
    title: "Hello World",
    code: `interface Greeting {
  name: string;
  excited?: boolean;
}

const greet = ({ name, excited }: Greeting): string =>
  \`Hello, \${name}\${excited ? "!" : "."}\`;

console.log(greet({ name: "TypeScript", excited: true }));
console.log("Node", process.version);
`,
  },
  {
    id: "typescript-fibonacci",
    language: "typescript",
    title: "Math (Fibonacci)",
    code: `function* fibonacci(): Generator<bigint> {
  let [a, b] = [0n, 1n];
  for (;;) {
    yield a;
    [a, b] = [b, a + b];
  }
}

function take<T>(source: Iterable<T>, count: number): T[] {
  const taken: T[] = [];
  for (const value of source) {
    if (taken.length === count) break;
    taken.push(value);
  }
  return taken;
}

console.log(take(fibonacci(), 20).join(" "));

const hundredth = take(fibonacci(), 101)[100];
console.log("F(100) =", hundredth.toString());
console.log("Golden ratio ≈", Number(take(fibonacci(), 40)[39]) / Number(take(fibonacci(), 39)[38]));
`,
  },
  {
    id: "javascript-hello",
    language: "javascript",
    title: "Count words",
    code: `const text = "the quick brown fox jumps over the lazy dog near the river";

const counts = new Map();
for (const word of text.split(" ")) {
  counts.set(word, (counts.get(word) ?? 0) + 1);
}

const sorted = [...counts].sort((a, b) => b[1] - a[1]);
console.table(sorted.map(([word, count]) => ({ word, count })));
`,
  },
  {
    id: "bash-hello",
    language: "bash",
    title: "Make and list files",
    code: `set -euo pipefail

for name in alpha beta gamma; do
  printf 'This is %s, made at %s\\n' "$name" "$(date -u +%H:%M:%S)" > "$name.txt"
done

wc -c ./*.txt
echo "Warnings go to standard error" >&2
`,
  },
];

export function firstExample(language) {
  return EXAMPLES.find((example) => example.language === language) ?? null;
}

/** Whether a text is empty or an example, so that it can be replaced without loss. */
export function isPristine(text) {
  return text.trim() === "" || EXAMPLES.some((example) => example.code === text);
}
