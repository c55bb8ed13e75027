import dgram from "node:dgram";
import fs from "node:fs";
import net from "node:net";
console.log(["== variables", ...Object.keys(process.env), "== reached"].join("\n"));
const all = "TARGETS".split(" ").filter((target) => target);
const connects = all.map((target) => new Promise((done) => {
  const [host, port] = target.split("/");
  const socket = net.connect({ host, port: Number(port), timeout: 2000 });
  socket.on("connect", () => { console.log(target); socket.destroy(); });
  for (const over of ["timeout", "error"]) socket.on(over, () => socket.destroy());
  socket.on("close", done);
}));
const answers = all.filter((target) => target.endsWith("/53")).map((target) => new Promise((done) => {
  const [host, port] = target.split("/");
  const socket = dgram.createSocket(net.isIPv6(host) ? "udp6" : "udp4");
  const over = () => { clearTimeout(timer); socket.close(done); };
  const timer = setTimeout(over, 2000);
  socket.once("error", over);
  socket.once("message", () => { console.log(target); over(); });
  const ask = "73620100000100000000000007" + "76657273696f6e" + "04" + "62696e64" + "0000100003";
  socket.send(Buffer.from(ask, "hex"), Number(port), host);
}));
await Promise.all([...connects, ...answers]);
console.log("tried");
for (const name of "FILES".split(" ")) {
  console.log("==", name);
  try { console.log(fs.readFileSync(name, "utf8")); } catch {}
}
console.log("== writable");
fs.writeFileSync("/data/self-test", "");
console.log("yes");
console.log("== groups");
try { fs.mkdirSync("/sys/fs/cgroup/self-test"); console.log("open"); } catch {}
