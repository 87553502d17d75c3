// Uses the package etcd3 as its documentation does, and prints what it answers.
//
// ENDPOINTS are host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be missing.
// With KILL, a file, the client writes before and after a member is killed: it makes the file, and waits for KILL.done.
// Nothing that differs between two runs is printed.
'use strict';
const fs = require('fs');
const { once } = require('events');
const { Etcd3 } = require('etcd3');

const { ENDPOINTS, KILL, CA, CERT, KEY, NAME, PASSWORD } = process.env;

function connect() {
  const read = (path) => (path ? fs.readFileSync(path) : undefined);
  return new Etcd3({
    hosts: ENDPOINTS.split(',').map((endpoint) => `${CA ? 'https' : 'http'}://${endpoint}`),
    ...(CA && { credentials: { rootCertificate: read(CA), certChain: read(CERT), privateKey: read(KEY) } }),
    ...(NAME && { auth: { username: NAME, password: PASSWORD } }),
  });
}

const say = (...parts) => console.log(...parts.map((part) => JSON.stringify(part)));

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return `${error.constructor.name} ${error.message}`;
  }
  return 'accepted';
}

async function values(client) {
  await client.put('app/a').value('1');
  await client.put('app/b').value('2');
  say('get', await client.get('app/a').string(), await client.get('app/none').string());
  say('all', await client.getAll().prefix('app/').sort('Key', 'Descend').strings());
  say('limit', await client.getAll().prefix('app/').limit(1).keys(), await client.getAll().prefix('app/').count());
  say('exists', await client.get('app/a').exists(), await client.get('app/none').exists());
  const old = await client.delete().key('app/b').getPrevious();
  say('delete', old.map((kv) => [kv.key.toString(), kv.value.toString()]));
  say('delete all', (await client.delete().prefix('app/')).deleted);
}

async function transactions(client) {
  for (const [version, value] of [[0, 'made'], [7, 'never']]) {
    const answer = await client
      .if('app/t', 'Version', '==', version)
      .then(client.put('app/t').value(value))
      .else(client.get('app/t'))
      .commit();
    const read = answer.responses.map((one) => one.response_range && one.response_range.kvs[0].value.toString());
    say('transaction', answer.succeeded, read);
  }
  await client.put('app/n').value('0');
  const add = () =>
    client.stm().transact(async (tx) => {
      const n = await tx.get('app/n').number();
      await tx.put('app/n').value(n + 1);
    });
  await Promise.all([1, 2, 3, 4].map(add));
  say('software transactions', await client.get('app/n').number());
}

async function watches(client) {
  const watcher = await client.watch().prefix('app/w/').create();
  const seen = [];
  let filled;
  const three = new Promise((resolve) => (filled = resolve));
  const keep = (kind) => (kv) => seen.push([kind, kv.key.toString(), kv.value.toString()]) === 3 && filled();
  watcher.on('put', keep('put')).on('delete', keep('delete'));
  await client.put('app/w/1').value('a');
  await client.put('app/w/1').value('b');
  await client.delete().key('app/w/1');
  await three;
  say('watch', seen);
  await watcher.cancel();
  const { header } = await client.get('app/w/1').exec();
  const past = client.watch().key('app/w/1').startRevision(String(header.revision - 2)).watcher();
  const [first] = await once(past, 'put');
  say('watch of the past', first.value.toString());
  await past.cancel();
}

async function leases(client) {
  const lease = client.lease(300);
  await lease.put('app/l').value('kept');
  say('lease', await client.get('app/l').string());
  await lease.keepaliveOnce();
  await lease.revoke();
  say('revoked', await client.get('app/l').string());
  const watcher = await client.watch().key('app/l').create();
  const short = client.lease(1, { autoKeepAlive: false });
  await short.put('app/l').value('short');
  await once(watcher, 'delete');
  say('expired');
  await watcher.cancel();
}

async function locks(client) {
  const lock = await client.lock('app/lock').ttl(60).acquire();
  say('second lock', await failure(() => client.lock('app/lock').ttl(60).acquire()));
  await lock.release();
  say('lock with work', await client.lock('app/lock').ttl(60).do(async () => 'done'));
}

async function elections(client) {
  const election = client.election('app/election', 60);
  const campaign = election.campaign('first');
  await once(campaign, 'elected');
  say('leader', await election.leader());
  await campaign.proclaim('changed');
  say('leader', await election.leader());
  await campaign.resign();
  say('leader', await election.leader());
}

async function refusals(client) {
  if (NAME) {
    say('of another', await failure(() => client.put('other').value('x')));
    say('of another, read', await failure(() => client.get('other')));
    return;
  }
  const { header } = await client.get('app/none').exec();
  say('future', await failure(() => client.kv.compact({ revision: String(Number(header.revision) + 1000) })));
  say('large', await failure(() => client.put('app/large').value('x'.repeat(1700000))));
  say('members', (await client.cluster.memberList({})).members.map((member) => member.name));
}

// Writes before and after the kill.
const WRITES = 30;
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function failover(client) {
  const lease = client.lease(60);
  await lease.put('app/leased').value('x');
  const watcher = await client.watch().prefix('app/f/').create();
  const order = [];
  watcher.on('put', (kv) => kv.version === '1' && order.push(kv.key.toString()));
  const names = Array.from({ length: 2 * WRITES }, (_, n) => `app/f/${String(n).padStart(2, '0')}`);
  for (const [n, name] of names.entries()) {
    if (n === WRITES) await kill();
    await untilWritten(client, name);
  }
  while (order.length < names.length) await sleep(10);
  say('watch', order.join() === names.join());
  const left = await client.leaseClient.leaseTimeToLive({ ID: await lease.grant() });
  say('keys', await client.getAll().prefix('app/f/').count(), 'lease', Number(left.TTL) > 0);
  say('lock', await client.lock('app/lock').ttl(60).do(async () => 'done'));
  await lease.revoke();
  await watcher.cancel();
}

async function untilWritten(client, key) {
  for (const end = Date.now() + 60000; ; await sleep(50)) {
    try {
      return await client.put(key).value('x');
    } catch (error) {
      if (Date.now() > end) throw error;
    }
  }
}

async function kill() {
  fs.writeFileSync(KILL, '');
  while (!fs.existsSync(`${KILL}.done`)) await sleep(10);
}

async function main() {
  const client = connect();
  for (const part of KILL ? [failover] : [values, transactions, watches, leases, locks, elections, refusals]) {
    await part(client);
  }
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
