-- Attempts at the first message of a key, stored as «attempts:due_ms:watched:id:reason». An empty id
-- stands for whatever message is first. While `watched` is above 0, messages of the key are taken one
-- by one: the instance was lost with several of them in hand, and one of them may be the cause.
local LOST, WATCHED = 'its instance was lost', 64

local function record_of(key)
  local attempts, due_ms, watched, id, reason = string.match(
    redis.call('HGET', attempts_key, key) or '', '^(%d+):(%d+):(%d+):([^:]*):(.*)$')
  return attempts and { attempts = tonumber(attempts), due_ms = tonumber(due_ms),
    watched = tonumber(watched), id = id, reason = reason }
end

local function write_record(key, attempts, due_ms, watched, id, reason)
  redis.call('HSET', attempts_key, key,
    string.format('%.0f:%.0f:%.0f:', attempts, due_ms, watched) .. id .. ':' .. reason)
end

-- The instance that had messages of this key in hand is gone.
local function lost_in_hand(key)
  if redis.call('HEXISTS', attempts_key, key) == 0 then write_record(key, 1, 0, WATCHED, '', LOST) end
end

-- A message that had a record is finished; `left` others are in its list.
local function forget_attempts(key, left)
  local record = record_of(key)
  if record and record.watched > 1 and left > 0 then
    write_record(key, 1, 0, record.watched - 1, '', LOST)
  else
    redis.call('HDEL', attempts_key, key)
  end
end
