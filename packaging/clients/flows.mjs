// Flows of E2B's JavaScript client, as it comes from the registry, against a controller.
//
//     node flows.mjs [FLOW...]      E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where
//
// Each flow prints a line; the exit code is 1 where one failed. Run where node_modules has the package.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { Sandbox, CommandExitError, NotFoundError, SandboxError, TimeoutError } from 'e2b'

const TEMPLATE = 'base'
// An emulated host is slow: what a client waits for by itself is waited for longer.
const PATIENT = { requestTimeoutMs: 300_000 }
const make = (more = {}) => Sandbox.create(TEMPLATE, { timeoutMs: 600_000, ...PATIENT, ...more })

async function within(use, more) {
  const sandbox = await make(more)
  try {
    await use(sandbox)
  } finally {
    await sandbox.kill(PATIENT)
  }
}

const flows = {
  async create() {
    const sandbox = await make({ metadata: { flow: 'a b&c=d' }, envs: { GREETING: 'hello' } })
    assert.match(sandbox.sandboxId, /^sb-/)
    assert.ok(await sandbox.isRunning(PATIENT))
    assert.equal((await sandbox.commands.run('echo $GREETING', PATIENT)).stdout, 'hello\n')
    const info = await Sandbox.getInfo(sandbox.sandboxId, PATIENT)
    assert.deepEqual([info.metadata, info.templateId], [{ flow: 'a b&c=d' }, TEMPLATE])
    assert.equal(await Sandbox.kill(sandbox.sandboxId, PATIENT), true)
    assert.equal(await Sandbox.kill(sandbox.sandboxId, PATIENT), false)
    assert.equal(await sandbox.isRunning(PATIENT), false)
  },

  commands: () =>
    within(async ({ commands }) => {
      let seen = ''
      const ran = await commands.run("printf 'a\\n'; printf 'ü\\n' >&2", { onStdout: (text) => (seen += text), ...PATIENT })
      assert.deepEqual([ran.exitCode, ran.stdout, ran.stderr, seen], [0, 'a\n', 'ü\n', 'a\n'])
      await assert.rejects(commands.run('exit 7', PATIENT), (e) => e instanceof CommandExitError && e.exitCode === 7)
      const back = await commands.run('read line; echo got $line', { background: true, stdin: true, ...PATIENT })
      assert.ok((await commands.list(PATIENT)).some((process) => process.pid === back.pid))
      await commands.sendStdin(back.pid, 'word\n', PATIENT)
      assert.equal((await back.wait()).stdout, 'got word\n')
      const slow = await commands.run('sleep 600', { background: true, timeoutMs: 0, ...PATIENT })
      assert.equal(await commands.kill(slow.pid, PATIENT), true)
      await assert.rejects(slow.wait(), CommandExitError)
      assert.equal(await commands.kill(slow.pid, PATIENT), false)
      await assert.rejects(commands.run('sleep 600', { ...PATIENT, timeoutMs: 3000 }), TimeoutError)
    }),

  files: () =>
    within(async ({ files }) => {
      await files.write('/tmp/deep/ü.txt', 'grün', PATIENT)
      assert.equal(await files.read('/tmp/deep/ü.txt', PATIENT), 'grün')
      assert.deepEqual((await files.list('/tmp/deep', PATIENT)).map((entry) => entry.name), ['ü.txt'])
      assert.equal(await files.makeDir('/tmp/new', PATIENT), true)
      assert.equal(await files.makeDir('/tmp/new', PATIENT), false)
      await files.rename('/tmp/deep/ü.txt', '/tmp/new/b.txt', PATIENT)
      assert.equal(await files.exists('/tmp/new/b.txt', PATIENT), true)
      await files.remove('/tmp/new', PATIENT)
      assert.equal(await files.exists('/tmp/new', PATIENT), false)
      await assert.rejects(files.read('/tmp/none', PATIENT), NotFoundError)
    }),

  watch: () =>
    within(async ({ files }) => {
      await files.makeDir('/tmp/seen', PATIENT)
      const told = new Promise((resolve) => {
        files.watchDir('/tmp/seen', (event) => event.name === 'a' && resolve(event), { timeoutMs: 0, ...PATIENT })
          .then(() => files.write('/tmp/seen/a', 'x', PATIENT))
      })
      assert.ok(await Promise.race([told, sleep(300_000, null)]))
    }),

  async code() {
    const { Sandbox: Interpreter } = await import('@e2b/code-interpreter')
    const sandbox = await Interpreter.create({ timeoutMs: 600_000, ...PATIENT })
    try {
      const ran = await sandbox.runCode("print('out')\n6 * 7", { timeoutMs: 300_000, ...PATIENT })
      assert.deepEqual([ran.text, ran.logs.stdout], ['42', ['out\n']])
      const failed = await sandbox.runCode('1 / 0', { timeoutMs: 300_000, ...PATIENT })
      assert.equal(failed.error.name, 'ZeroDivisionError')
    } finally {
      await sandbox.kill(PATIENT)
    }
  },

  pause: () =>
    within(async (sandbox) => {
      await sandbox.commands.run('echo kept > /tmp/kept', PATIENT)
      await (sandbox.pause ?? sandbox.betaPause).call(sandbox, PATIENT)
      const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000, ...PATIENT })
      assert.equal((await again.commands.run('cat /tmp/kept', PATIENT)).stdout, 'kept\n')
    }),

  async timeout() {
    const sandbox = await make()
    const end = async () => (await Sandbox.getInfo(sandbox.sandboxId, PATIENT)).endAt
    const before = await end()
    await sandbox.setTimeout(1_000_000, PATIENT)
    assert.ok((await end()) > before)
    await sandbox.setTimeout(0, PATIENT)
    for (const until = Date.now() + 300_000; await sandbox.isRunning(PATIENT); await sleep(1000)) assert.ok(Date.now() < until)
  },

  metrics: () =>
    within(async (sandbox) => {
      const [metric] = await sandbox.getMetrics(PATIENT)
      assert.ok(metric.memTotal > metric.memUsed && metric.memUsed > 0 && metric.cpuCount === 1)
    }),

  async errors() {
    await assert.rejects(Sandbox.create('no-such-template', PATIENT), SandboxError)
    await assert.rejects(Sandbox.connect('sb-0-0', PATIENT), NotFoundError)
  },
}

const chosen = process.argv.slice(2)
let failed = 0
for (const name of chosen.length ? chosen : Object.keys(flows)) {
  const began = Date.now()
  const outcome = await flows[name]().then(
    () => 'ok',
    (error) => {
      failed += 1
      console.error(error)
      return 'FAILED'
    },
  )
  console.log(`${outcome} js ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`)
}
process.exit(failed ? 1 : 0)
