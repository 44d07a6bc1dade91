// A kept JavaScript interpreter: evaluates code sent by the agent in one lasting context of the image's own node.
//
// Descriptors: 3 requests, 4 answers, both a little-endian length of four bytes followed by JSON; 1 and 2 are pipes that
// the agent reads. Only what node brings along is used.
'use strict';
const fs = require('fs');
const path = require('path');
const util = require('util');
const vm = require('vm');

const REQUESTS = 3, ANSWERS = 4;
// Most characters of one text in an answer.
const CAP = 16 * 1024 * 1024;
const say = process.stdout.write.bind(process.stdout);
let interrupt = null;
let runs = 0;

function send(answer) {
  const body = Buffer.from(JSON.stringify(answer));
  const frame = Buffer.alloc(4 + body.length);
  frame.writeUInt32LE(body.length);
  body.copy(frame, 4);
  for (let at = 0; at < frame.length;) {
    try {
      at += fs.writeSync(ANSWERS, frame, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

function describe(error) {
  const known = error instanceof Error || (error && typeof error === 'object' && 'stack' in error);
  const name = known ? String(error.name) : 'Error';
  const value = known ? String(error.message) : util.inspect(error);
  return { name, value, traceback: known ? String(error.stack) : value };
}

// Code with `await` outside of a function runs as one function; its last expression is its value.
function wrapped(code) {
  const lines = code.trimEnd().split('\n');
  const last = lines.pop();
  for (const body of [`${lines.join('\n')}\nreturn (${last.replace(/;\s*$/, '')}\n)`, code]) {
    try {
      return new vm.Script(`(async () => {${body}\n})()`, { filename: `<cell ${runs}>` });
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
  }
  return null;
}

function compile(code) {
  try {
    return new vm.Script(code, { filename: `<cell ${runs}>` });
  } catch (error) {
    const other = error instanceof SyntaxError && /\bawait\b/.test(code) ? wrapped(code) : null;
    if (!other) throw error;
    return other;
  }
}

async function evaluate(code) {
  runs += 1;
  const interrupted = new Promise((_, reject) => {
    interrupt = () => reject(Object.assign(new Error('interrupted'), { name: 'KeyboardInterrupt' }));
  });
  const value = compile(code).runInThisContext({ breakOnSigint: true, displayErrors: false });
  return await Promise.race([value, interrupted]);
}

function bundle(value) {
  const made = { text: (typeof value === 'string' ? value : util.inspect(value)).slice(0, CAP) };
  if (value !== null && typeof value === 'object') {
    try {
      const json = JSON.stringify(value);
      if (json !== undefined && json.length <= CAP) made.json = JSON.parse(json);
    } catch (_) { /* what cannot be written as JSON has no such form */ }
  }
  for (const [name, method] of [['html', 'toHTML'], ['svg', 'toSVG'], ['markdown', 'toMarkdown']]) {
    if (value && typeof value[method] === 'function') made[name] = String(value[method]());
  }
  return made;
}

async function run(request) {
  const started = process.hrtime.bigint();
  const answer = { kind: 'done', result: null, result_json: null, error: null, truncated: false, numpy_version: null };
  const env = (request.rich && request.rich.env) || {};
  const replaced = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]));
  Object.assign(process.env, env);
  try {
    const value = await evaluate(request.code);
    if (value !== undefined) {
      const shown = bundle(value);
      answer.result = shown.text;
      if (request.rich) answer.bundle = shown;
    }
  } catch (error) {
    answer.error = describe(error);
  } finally {
    interrupt = null;
    for (const [name, value] of Object.entries(replaced)) {
      if (value === undefined) delete process.env[name]; else process.env[name] = value;
    }
  }
  answer.micros = Number((process.hrtime.bigint() - started) / 1000n);
  return answer;
}

// Two children of one snapshot must not draw the same numbers: from here on they come from the kernel.
function reseed() {
  Math.random = () => {
    const bytes = Buffer.alloc(8);
    const random = fs.openSync('/dev/urandom', 'r');
    try {
      fs.readSync(random, bytes, 0, 8, null);
    } finally {
      fs.closeSync(random);
    }
    return Number(bytes.readBigUInt64LE() >> 11n) / 2 ** 53;
  };
  return { kind: 'reseeded', error: null, numpy_version: null };
}

async function serve() {
  let buffer = Buffer.alloc(0);
  for await (const part of fs.createReadStream('', { fd: REQUESTS })) {
    buffer = Buffer.concat([buffer, part]);
    while (buffer.length >= 4 && buffer.length >= 4 + buffer.readUInt32LE()) {
      const end = 4 + buffer.readUInt32LE();
      const request = JSON.parse(buffer.subarray(4, end).toString());
      buffer = buffer.subarray(end);
      send(request.op === 'run' ? await run(request) : reseed());
    }
  }
  process.exit(0);
}

process.on('SIGINT', () => interrupt && interrupt());
process.on('uncaughtException', (error) => process.stderr.write(`${describe(error).traceback}\n`));
process.on('unhandledRejection', (error) => process.stderr.write(`${describe(error).traceback}\n`));
globalThis.require = require('module').createRequire(path.join(process.cwd(), 'cell.js'));
globalThis.display = (value) => send({ kind: 'display', bundle: bundle(value), numpy_version: null });
say('');
send({ kind: 'ready', python: process.version, numpy_version: null });
serve();
