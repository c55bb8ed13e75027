// Installs packages by npm, in a sandbox that runs nothing of a user. Reads what to install from standard input.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const { dirname } = require('node:path');

const { requirements, index, roots, builds, folder } = JSON.parse(fs.readFileSync(0, 'utf8'));
// Not in `folder` yet: images have a link to it where Node looks for modules, and npm must not find what it installs.
const made = '/data/.tmp/made';
fs.mkdirSync(made, { recursive: true });
const env = {
  ...process.env,
  SANDBOX_PACKAGES: 'direct',
  TMPDIR: '/data/.tmp',
  npm_config_cache: '/data/.cache',
  npm_config_ignore_scripts: String(!builds),
  npm_config_registry: index,
};
// Those that the image trusts, in place of the tool's own.
const CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt';
const trusted = fs.existsSync(CERTIFICATES);
if (trusted) env.npm_config_cafile = CERTIFICATES;
if (roots) {
  // After those, for the operator's own registry.
  env.npm_config_cafile = '/data/.tmp/roots.pem';
  fs.writeFileSync(env.npm_config_cafile, `${trusted ? fs.readFileSync(CERTIFICATES, 'utf8') : ''}\n${roots}`);
}
const quiet = ['--no-audit', '--no-fund', '--no-progress', '--no-update-notifier', '--fetch-retries=1'];
const { status } = spawnSync('npm', ['install', '--prefix', made, ...quiet, '--', ...requirements], {
  env, stdio: ['ignore', 'inherit', 'inherit'], cwd: '/data/.tmp',
});
if (status !== 0) process.exit(1);
const { packages } = JSON.parse(fs.readFileSync(`${made}/node_modules/.package-lock.json`, 'utf8'));
const installed = Object.entries(packages).filter(([path]) => path.lastIndexOf('node_modules/') === 0);
const names = installed.map(([path, { version }]) => `${path.slice('node_modules/'.length)}@${version}`);
// For Deno, which finds modules where Node does only if its settings say so.
fs.writeFileSync(`${made}/deno.json`, '{"nodeModulesDir":"manual"}\n');
fs.writeFileSync(`${made}/.sandbox.json`, JSON.stringify({ asked: requirements, installed: names.sort() }));
fs.mkdirSync(dirname(folder), { recursive: true });
fs.renameSync(made, folder);
