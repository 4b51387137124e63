-- What is known of a message's deliveries: «count», then one line for each failure. A message
-- without a record was sent once: the common case writes nothing.
local function parse_attempts(value)
  if not value then return 1, '' end
  if value == '0' then return 0, '' end
  local count, reasons = string.match(value, '^(%d+)(.*)$')
  return tonumber(count) or 1, reasons or ''
end

local function attempts_of(attempts_key, id)
  return parse_attempts(redis.call('HGET', attempts_key, id))
end

-- Take a message out of the pending ones and keep it, with what went wrong, as a dead letter.
local function bury(pending_key, payloads_key, attempts_key, dead_key, id, reason)
  local count, reasons = attempts_of(attempts_key, id)
  if reason then reasons = reasons .. '\n' .. reason end
  local payload = redis.call('HGET', payloads_key, id)
  local letter = { 'message_id', id, 'deliveries', count, 'reasons', string.sub(reasons, 2) }
  if payload then
    letter[#letter + 1] = 'payload'
    letter[#letter + 1] = payload
  end
  redis.call('XADD', dead_key, '*', unpack(letter))
  redis.call('ZREM', pending_key, id)
  redis.call('HDEL', payloads_key, id)
  redis.call('HDEL', attempts_key, id)
end
