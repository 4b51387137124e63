#!lua
-- Guarantee: messages older than the threshold are marked as moving; they stay in Redis, in their
-- state, until finish_move. No message is marked before an older one of its queue, so the archived
-- messages of a queue are older than those in Redis.
-- KEYS: 3 moving; per item the six of its queue
-- ARGV: 4 threshold_ms, 5 messages_max and 6 bytes_max of the whole call, 7 number of items; per
-- item: queue
-- Returns: per item a list: id, record, …
-- Events: none, finish_move adds the event
-- Repeats: safe, the second call answers the same
-- include: transition
-- include: queue
local SENT_MAX = 2000 -- more than a session may have; beyond it pending ones move in a later pass
local cutoff = (now_ms - tonumber(ARGV[4])) * 1000
local messages_left, bytes_left = tonumber(ARGV[5]), tonumber(ARGV[6])

local function mark(queue, name, ids, reply)
  for _, id in ipairs(ids) do
    local record = bytes_left > 0 and call('HGET', queue.messages, id)
    if record and header_of(record) <= cutoff then
      if call('HSETNX', KEYS[3], id, name) == 1 then
        call('HINCRBY', queue.meta, 'moving', 1)
      end
      messages_left, bytes_left = messages_left - 1, bytes_left - #record
      reply[#reply + 1] = id
      reply[#reply + 1] = record
    end
  end
end

-- Sent messages first: they are older than the pending ones, and may be pending again at any time.
local function mark_all(queue, name, reply)
  local sent = call('ZRANGEBYSCORE', queue.sending, '-inf', digits(HELD + cutoff),
    'LIMIT', 0, SENT_MAX)
  mark(queue, name, sent, reply)
  if #sent < SENT_MAX and messages_left > 0 and bytes_left > 0 then
    mark(queue, name, call('ZRANGEBYSCORE', queue.pending, '-inf', digits(cutoff),
      'LIMIT', 0, messages_left), reply)
  end
end

local replies = {}
for item = 1, tonumber(ARGV[7]) do
  local queue, name, reply = queue_at(4 + (item - 1) * QUEUE_KEYS), ARGV[7 + item], {}
  if messages_left > 0 and bytes_left > 0 then mark_all(queue, name, reply) end
  replies[item] = reply
end
return replies
