// BOOTSTRAP TOPIC: what applications do with KafkaJS. Says in lines of JSON what it saw; waits for a line before the rest.
'use strict'
const fs = require('node:fs')
const { once } = require('node:events')
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')

const [bootstrap, topic] = process.argv.slice(2)
const committed = `${topic}-committed`
const { CLIENT_CA, CLIENT_USER, CLIENT_PASSWORD } = process.env
const login = CLIENT_CA && {
  ssl: { ca: [fs.readFileSync(CLIENT_CA)] },
  sasl: { mechanism: 'scram-sha-256', username: CLIENT_USER, password: CLIENT_PASSWORD },
}
const kafka = new Kafka({
  clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 30, maxRetryTime: 500 },
  ...login,
})
const seen = new Set()
const say = (what) => console.log(JSON.stringify(what))

async function until(isSo) {
  for (let left = 600; left > 0 && !isSo(); left--) await new Promise((resolve) => setTimeout(resolve, 50))
}

async function member() {
  const consumer = kafka.consumer({ groupId: topic, heartbeatInterval: 200, maxWaitTimeInMs: 200 })
  let assigned = 0
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    assigned = (payload.memberAssignment[topic] ?? []).length
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message }) => seen.add(`${partition} ${message.offset} ${message.headers.of}`),
  })
  return { consumer, assigned: () => assigned }
}

async function send(producer, of, compression) {
  const messages = Array.from({ length: 50 }, (_, n) => ({ value: `${of} ${n}`, partition: n % 2, headers: { of } }))
  await producer.send({ topic, compression, messages })
  return messages.length
}

// Three transactions of two records, the second one aborted.
async function transactions(sender) {
  for (const number of [0, 1, 2]) {
    const transaction = await sender.transaction()
    await transaction.send({ topic: committed, messages: [{ value: 'one' }, { value: 'two' }] })
    await transaction.sendOffsets({
      consumerGroupId: `${topic}-sent`, topics: [{ topic, partitions: [{ partition: 0, offset: String(number) }] }],
    })
    await (number === 1 ? transaction.abort() : transaction.commit())
  }
}

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  const topics = [{ topic, numPartitions: 2 }, { topic: committed, numPartitions: 1 }]
  await admin.createTopics({ topics })
  const producer = kafka.producer()
  const sender = kafka.producer({ transactionalId: topic, idempotent: true, maxInFlightRequests: 1 })
  await Promise.all([producer.connect(), sender.connect()])
  const first = await member()
  let sent = 0
  for (const name of ['None', 'GZIP', 'Snappy']) sent += await send(producer, name, CompressionTypes[name])
  await until(() => seen.size >= sent)
  say({ seen: seen.size - sent, assigned: first.assigned() })
  const second = await member()
  await until(() => first.assigned() === 1 && second.assigned() === 1)
  await transactions(sender)
  say({ waits: true, assigned: [first.assigned(), second.assigned()] })
  await once(process.stdin, 'data')
  sent += await send(producer, 'after')
  await until(() => seen.size >= sent)
  say({ seen: seen.size - sent })
  await transactions(sender)
  let read = 0
  const reader = kafka.consumer({ groupId: committed, readUncommitted: false, maxWaitTimeInMs: 200 })
  await reader.connect()
  await reader.subscribe({ topic: committed, fromBeginning: true })
  await reader.run({ eachMessage: async () => { read++ } })
  await until(() => read >= 8)
  const [offsets] = await admin.fetchOffsets({ groupId: `${topic}-sent`, topics: [topic] })
  say({ read, offset: offsets.partitions.find(({ partition }) => partition === 0).offset })
  const other = kafka.producer({ transactionalId: topic, idempotent: true, maxInFlightRequests: 1 })
  await other.connect()
  await transactions(other)
  say({ fenced: await transactions(sender).then(() => '', (error) => error.type) })
  for (const each of [first.consumer, second.consumer, reader, producer, sender, other]) await each.disconnect()
  await admin.deleteTopics({ topics: [topic, committed] })
  await admin.disconnect()
  process.exit(0) // of connections that came again KafkaJS forgets some, which keep the process
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
