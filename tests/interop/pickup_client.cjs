// A client as mediators ship it: rpc-websockets of the version given, every method, and a wait for
// the gateway to come back. Prints one JSON line for each step; the test reads them.
const [, , library, url] = process.argv
const { Client } = require(library)
const client = new Client(url, { reconnect: true, reconnect_interval: 100, max_reconnects: 0 })
const say = (step, value) => console.log(JSON.stringify({ step, value }))
const did = 'did:example:anna'
const received = []
let opened = 0

client.on('error', () => {})
client.on('messagesReceived', async (data) => {
  for (const message of data.messages) received.push(message.encryptedMessage.n)
  say('received', { connectionId: data.connectionId, count: data.messages.length, hasId: !!data.id })
  await client.call('removeMessages', {
    connectionId: data.connectionId,
    messageIds: data.messages.map((message) => message.id),
  })
})

async function first() {
  const one = { connectionId: 'c1' }
  say('ping', await client.call('ping'))
  for (const method of ['addMessage', 'addMessageToQueue']) {
    const added = await client.call(method, { ...one, recipientDids: [did], payload: { n: method } })
    say(method, typeof added.messageId)
  }
  say('count', await client.call('getAvailableMessageCount', { ...one, recipientDid: did }))
  const taken = await client.call('takeFromQueue', { ...one, limit: 1 })
  say('takeFromQueue', taken.map((message) => message.encryptedMessage.n))
  say('date', !Number.isNaN(new Date(taken[0].receivedAt).getTime()))
  say('removeMessages', await client.call('removeMessages', { ...one, messageIds: [taken[0].id] }))
  say('removeAllMessages', await client.call('removeAllMessages', { ...one, recipientDid: did }))
  say('left', await client.call('getAvailableMessageCount', one))
  const two = { connectionId: 'c2' }
  say('addLiveModeSession', await client.call('addLiveModeSession', { ...two, sessionId: 's0' }))
  say('removeLiveModeSession', await client.call('removeLiveModeSession', two))
  await client.call('nothing').catch((error) => say('unknown method', error.code))
  await client.call('takeFromQueue', {}).catch((error) => say('bad params', error.code))
}

client.on('open', async () => {
  opened += 1
  say('subscribe', await client.subscribe('messagesReceived'))
  if (opened === 1) await first()
  say('addLiveSession', await client.call('addLiveSession', { connectionId: 'c3', sessionId: `s${opened}` }))
  say('getLiveSession', await client.call('getLiveSession', { connectionId: 'c3' }))
  for (let n = 0; n < 3; n += 1) {
    const payload = { n: `${opened}-${n}` }
    await client.call('addMessage', { connectionId: 'c3', recipientDids: [did], payload })
  }
  const wait = () => (received.length < 3 * opened ? setTimeout(wait, 20) : say(`round ${opened}`, received))
  wait()
})
