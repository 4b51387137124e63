#!lua
-- Guarantee: messages older than the threshold are marked as moving; they stay in Redis, in their
-- state, until finish_move. No message is marked before an older one of its queue, so the archived
-- messages of a queue are older than those in Redis. The limits hold for the whole call.
-- Events: none, finish_move adds the event
-- Repeats: safe, the second call answers the same
-- include: transition
-- include: queue
local SENT_MAX = 2000 -- more than a session may have; beyond it pending ones move in a later pass
local cutoff = (now_ms - threshold_ms) * 1000
local messages_left, bytes_left = messages_max, bytes_max

local function mark(keys, queue, ids, marked)
  for _, id in ipairs(ids) do
    local record = bytes_left > 0 and call('HGET', keys.messages, id)
    if record and header_of(record) <= cutoff then
      if call('HSETNX', moving_key, id, queue) == 1 then
        call('HINCRBY', keys.meta, 'moving', 1)
      end
      messages_left, bytes_left = messages_left - 1, bytes_left - #record
      marked[#marked + 1] = id
      marked[#marked + 1] = record
    end
  end
end

-- Sent messages first: they are older than the pending ones, and may be pending again at any time.
local function mark_all(keys, queue, marked)
  local sent = call('ZRANGEBYSCORE', keys.sending, '-inf', digits(HELD + cutoff),
    'LIMIT', 0, SENT_MAX)
  mark(keys, queue, sent, marked)
  if #sent < SENT_MAX and messages_left > 0 and bytes_left > 0 then
    mark(keys, queue, call('ZRANGEBYSCORE', keys.pending, '-inf', digits(cutoff),
      'LIMIT', 0, messages_left), marked)
  end
end

return each_item(function(queue, meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key)
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local marked = {}
  if messages_left > 0 and bytes_left > 0 then mark_all(keys, queue, marked) end
  return reply.marked(marked)
end)
