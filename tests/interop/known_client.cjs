// The known gateway's own client, as a mediator uses it: every method, and a live session of a second
// mediator. Prints one JSON line for each step; the test reads them.
const [, , library, url] = process.argv
const { MessagePickupRepositoryClient } = require(library)
const say = (step, value) => console.log(JSON.stringify({ step, value }))
const did = 'did:example:anna'

async function main() {
  const first = new MessagePickupRepositoryClient({ url })
  const second = new MessagePickupRepositoryClient({ url })
  first.setConnectionInfo(async () => ({ pushNotificationToken: { type: 'fcm', token: 't1' }, maxReceiveBytes: 100000 }))
  await first.connect()
  await second.connect()
  say('ping', await first.ping())
  const one = { connectionId: 'c1' }
  const ids = []
  for (const n of [1, 2, 3]) {
    const added = await first.addMessage({ ...one, recipientDids: [did], payload: { n } })
    ids.push(JSON.parse(added).messageId)
  }
  say('addMessage', ids.map((id) => typeof id))
  say('count', await first.getAvailableMessageCount({ ...one, recipientDid: did }))
  const taken = await first.takeFromQueue({ ...one, recipientDid: did, limit: 2, deleteMessages: false })
  say('taken', taken.map((message) => message.encryptedMessage.n))
  say('same ids', taken.map((message) => message.id).join() === ids.slice(0, 2).join())
  say('removeMessages', (await first.removeMessages({ ...one, messageIds: [taken[0].id] })) ?? null)
  say('removeAllMessages', (await first.removeAllMessages({ ...one, recipientDid: did })) ?? null)
  say('left', await first.getAvailableMessageCount(one))

  const two = { connectionId: 'c2' }
  const received = []
  const all = new Promise((done) => {
    second.messagesReceived(async (data) => {
      for (const message of data.messages) received.push(message.encryptedMessage.n)
      await second.removeMessages({
        connectionId: data.connectionId,
        messageIds: data.messages.map((message) => message.id),
      })
      if (received.length === 3) done()
    })
  })
  say('no session', await first.getLiveSession(two))
  await first.addMessage({ ...two, recipientDids: [did], payload: { n: 1 } })
  say('addLiveSession', await second.addLiveSession({ ...two, sessionId: 's1' }))
  say('getLiveSession', await first.getLiveSession(two))
  for (const n of [2, 3]) await first.addMessage({ ...two, recipientDids: [did], payload: { n } })
  await all
  say('received', received)
  say('nothing left', await first.getAvailableMessageCount(two))
  say('removeLiveSession', await second.removeLiveSession(two))
  say('session gone', await first.getLiveSession(two))
  await first.disconnect()
  await second.disconnect()
  say('end', true)
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
