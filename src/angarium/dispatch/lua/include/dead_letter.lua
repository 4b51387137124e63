-- The attempts of a message are the number of deliveries, then one line for each failure. No
-- record means one delivery without a failure: the common case writes nothing.
local function parse_attempts(value)
  if not value then return 1, '' end
  if value == '0' then return 0, '' end
  local count, reasons = string.match(value, '^(%d+)(.*)$')
  return tonumber(count) or 1, reasons or ''
end

local function attempts_of(attempts_key, id)
  return parse_attempts(redis.call('HGET', attempts_key, id))
end

-- Make a pending message a dead letter, with the reasons of its failures.
local function dead_letter(pending_key, payloads_key, attempts_key, dead_key, id, reason)
  local count, reasons = attempts_of(attempts_key, id)
  if reason then reasons = reasons .. '\n' .. reason end
  local payload = redis.call('HGET', payloads_key, id)
  local fields = { 'message_id', id, 'deliveries', count, 'reasons', string.sub(reasons, 2) }
  if payload then
    fields[#fields + 1] = 'payload'
    fields[#fields + 1] = payload
  end
  redis.call('XADD', dead_key, '*', unpack(fields))
  redis.call('ZREM', pending_key, id)
  redis.call('HDEL', payloads_key, id)
  redis.call('HDEL', attempts_key, id)
end
