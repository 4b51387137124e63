-- Make a pending message a dead letter, with the reasons of its failures. Needs attempts.lua and
-- queues.lua.
local function dead_letter(message_id, reason)
  local deliveries, _, reasons = read_attempts(redis.call('HGET', attempts_key, message_id))
  if reason then reasons = add_reason(reasons, reason) end
  local payload = redis.call('HGET', payloads_key, message_id)
  local fields = {
    'message_id', message_id, 'deliveries', deliveries, 'reasons', string.sub(reasons, 2)
  }
  if payload then
    fields[#fields + 1] = 'payload'
    fields[#fields + 1] = payload
  end
  local queue = leave_queue(message_id)
  if queue then
    fields[#fields + 1] = 'queue'
    fields[#fields + 1] = queue
  end
  redis.call('XADD', dead_key, '*', unpack(fields))
  redis.call('ZREM', pending_key, message_id)
  redis.call('HDEL', payloads_key, message_id)
  redis.call('HDEL', attempts_key, message_id)
end
